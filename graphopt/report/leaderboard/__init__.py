"""The leaderboard: answers of anybody's methods to fixed problems, priced again from the answers themselves."""
