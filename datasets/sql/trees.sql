-- Nodes by action
SELECT
    action,
    count(*) AS nodes,
    count(*) FILTER (terminal) AS terminal,
    count(*) FILTER (forced) AS forced,
    count(reward) AS labelled,
    round(avg(reward), 3) AS reward,
    round(avg(f1), 3) AS f1,
    round(avg(n_outcomes), 1) AS outcomes,
    round(avg(output_tokens), 1) AS tokens
FROM trees
WHERE parent_id >= 0
GROUP BY action
ORDER BY nodes DESC, action;
