"""Results of runs: answers, tables, figures, pictures, replay, the leaderboard."""
