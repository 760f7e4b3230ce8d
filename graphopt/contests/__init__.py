"""Problems of contests: sharding and tiling, each with its task, cost, data and search."""
