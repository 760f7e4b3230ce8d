"""Plans that cost no price: priorities, partitions, list schedules."""
