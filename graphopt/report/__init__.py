"""What runs left: answers, tables, figures, pictures, replay, the leaderboard."""
