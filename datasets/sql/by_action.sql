-- Pairs by chosen and rejected action (ReasonRAG's figure 2a)
SELECT
    chosen_action AS chosen,
    rejected_action AS rejected,
    count(*) AS pairs,
    round(avg(chosen_reward), 3) AS chosen_reward,
    round(avg(rejected_reward), 3) AS rejected_reward,
    round(avg(reward_gap), 3) AS gap
FROM pairs
GROUP BY chosen_action, rejected_action
ORDER BY pairs DESC, chosen, rejected;
