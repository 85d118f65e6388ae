-- Failures by stage and kind
SELECT stage, kind, count(*) AS questions, any_value(detail) AS example
FROM failures
GROUP BY stage, kind
ORDER BY questions DESC, stage, kind;
