-- Reward gap of the pairs, quantiles (ReasonRAG's figure 2d)
SELECT
    count(*) AS pairs,
    round(min(reward_gap), 3) AS min,
    round(quantile_cont(reward_gap, 0.1), 3) AS q10,
    round(quantile_cont(reward_gap, 0.25), 3) AS q25,
    round(median(reward_gap), 3) AS median,
    round(quantile_cont(reward_gap, 0.75), 3) AS q75,
    round(quantile_cont(reward_gap, 0.9), 3) AS q90,
    round(max(reward_gap), 3) AS max
FROM pairs;
