.PHONY: help setup demo lint test bench
help:
	@echo "make demo    a table, its snapshots, their sketches and indexes, searches (a few minutes)"
	@echo "make test    everything CI runs: lint, types, import rules, tests"
	@echo "make lint    lint, types and import rules alone"
	@echo "make setup   the environment alone"
	@echo "make bench   our kernels, and the peers that are installed, side by side"
setup demo lint test bench:
	@sh deploy/bootstrap.sh $@
