-- Overview (the statistics of ReasonRAG's table 1)
-- Tokens are output tokens of the compared actions, by the policy's tokenizer. An iteration is one
-- policy call: the depth of the compared actions.
WITH asked AS (
    SELECT source, count(*) AS n FROM questions GROUP BY source
),
paired AS (
    SELECT count(DISTINCT question_id) AS n FROM pairs
),
chosen AS (
    SELECT chosen_action AS action, count(*) AS n FROM pairs GROUP BY chosen_action
),
sides AS (
    SELECT tree_id, chosen_node AS node_id FROM pairs
    UNION ALL
    SELECT tree_id, rejected_node AS node_id FROM pairs
),
tokens AS (
    SELECT trees.output_tokens AS n FROM sides JOIN trees USING (tree_id, node_id)
),
page AS (
    SELECT 1 AS part, 'Questions' AS statistic, sum(n)::DOUBLE AS number, NULL AS share FROM asked
    UNION ALL
    SELECT 2, '- ' || source, n, n / sum(n) OVER () FROM asked
    UNION ALL
    SELECT 3, 'Questions with a pair', n, n / (SELECT sum(n) FROM asked) FROM paired
    UNION ALL
    SELECT 4, 'Actions (preference pairs, by chosen action)', sum(n), NULL FROM chosen
    UNION ALL
    SELECT 5, '- ' || action, n, n / sum(n) OVER () FROM chosen
    UNION ALL
    SELECT 6 + number, name || ' iteration', value, NULL FROM (
        SELECT avg(depth) AS a, min(depth) AS b, median(depth) AS c, max(depth) AS d FROM pairs
    ), LATERAL (VALUES (0, 'Avg.', a), (1, 'Min.', b), (2, 'Med.', c), (3, 'Max.', d))
        AS listed (number, name, value)
    UNION ALL
    SELECT 10 + number, name || ' tokens', value, NULL FROM (
        SELECT avg(n) AS a, min(n) AS b, median(n) AS c, max(n) AS d FROM tokens
    ), LATERAL (VALUES (0, 'Avg.', a), (1, 'Min.', b), (2, 'Med.', c), (3, 'Max.', d))
        AS listed (number, name, value)
)
SELECT statistic, round(number, 2) AS number, round(100 * share, 1) AS percent
FROM page
ORDER BY part, statistic;
