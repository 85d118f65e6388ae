-- Pairs by depth and stage (ReasonRAG's figure 2b)
SELECT
    depth,
    stage,
    count(*) AS pairs,
    count(DISTINCT question_id) AS questions,
    round(avg(reward_gap), 3) AS gap,
    round(avg(least(chosen_outcomes, rejected_outcomes)), 1) AS outcomes
FROM pairs
GROUP BY depth, stage
ORDER BY depth, stage;
