"""The one measuring service: targets are timed by turns in processes of their own, and times are kept."""
