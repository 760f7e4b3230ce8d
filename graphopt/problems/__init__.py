"""What optimisers see: a graph with its task, cost model and budget, behind one meter."""
