"""Local advantages: what every choice of every slot costs, sampled around many decisions, kept on disk, as labels."""
