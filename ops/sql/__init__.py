"""SQL over tables with vector indexes: the nearest rows by an index, everything else by Spark."""
