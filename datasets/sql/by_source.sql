-- Questions and pairs by source, type and hops
WITH counted AS (
    SELECT question_id, count(*) AS pairs, avg(reward_gap) AS gap FROM pairs GROUP BY question_id
)
SELECT
    questions.source,
    questions.type,
    questions.hops,
    count(*) AS questions,
    count(counted.pairs) AS with_pairs,
    coalesce(sum(counted.pairs), 0) AS pairs,
    round(avg(counted.gap), 3) AS gap
FROM questions LEFT JOIN counted USING (question_id)
GROUP BY questions.source, questions.type, questions.hops
ORDER BY questions.source, questions.type, questions.hops;
