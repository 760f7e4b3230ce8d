"""Graph rewriting: term graphs, rules, matching, generation, verification, extraction."""
