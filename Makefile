.PHONY: help setup demo lint quick test durations bench mutants clauses nightly flaky fuzz engines trino presto planners catalogs crowd stores ranges resolve pythons
help:
	@echo "make demo    a table, its snapshots, their sketches and indexes, searches (a few minutes)"
	@echo "make test    everything CI runs: lint, types, import rules, tests; FILES=tests runs all tests, which takes longer"
	@echo "make quick   the tests of what you have changed, at most 90 seconds"
	@echo "make lint    lint, types and import rules alone"
	@echo "make setup   the environment alone"
	@echo "make durations                           the test run, measured: a table of stages and files; FILES=\"tests/test_draws.py\" of some"
	@echo "make bench   our kernels, and the peers that are installed, side by side"
	@echo "make mutants MODULE=ops/recall/confidence.py    which changes of a module, or of a folder, its tests do not notice; SAMPLE=50 SHORT=1"
	@echo "make nightly SECONDS=1800                all tests that draw, with other seeds than the commit's"
	@echo "make flaky FILES=\"tests/test_names.py\" N=20    files of tests beside two busy loops on one core"
	@echo "make clauses                             breaks clauses of the texts, one at a time; WORDS=theta for some alone"
	@echo "make fuzz SECONDS=600                    random bytes for every parser of Puffin files"
	@echo "make catalogs                            the life of an index on catalogs that the tests leave out"
	@echo "make crowd CATALOG=hive SECONDS=600       many at one table, while messages are lost and the server crashes; sqlite, postgres, rest, hive, glue"
	@echo "make stores                              the life of an index on GCS and ADLS; needs Go and Node.js"
	@echo "make engines                             which other engines read tables with indexes; fetches 1.5 GB"
	@echo "make trino                               sketches and indexes as Trino sees them; fetches 540 MB, needs a JDK 24"
	@echo "make presto                              statistics as Presto reads them; fetches 2 GB"
	@echo "make planners                            ten queries, as Trino and Spark plan them without statistics and with ours"
	@echo "make ranges                              a part of the tests at both ends of the version ranges; fetches 1 GB"
	@echo "make resolve                             what pip and uv choose for each extra, alone and beside the newest Dagster"
	@echo "make pythons                             a part of the tests on Python 3.12 to 3.14, as far as they are installed"
mutants:
	@sh deploy/bootstrap.sh mutants "$(MODULE)" --tests "$(TESTS)" --sample "$(or $(SAMPLE),0)" $(if $(SHORT),--short) $(if $(SEED),--seed $(SEED))
nightly:
	@sh deploy/bootstrap.sh nightly --seconds "$(or $(SECONDS),1800)" $(if $(SEED),--seed $(SEED))
flaky:
	@sh deploy/bootstrap.sh flaky --times "$(or $(N),20)" $(FILES)
crowd:
	@sh deploy/bootstrap.sh crowd "$(or $(CATALOG),sqlite)" --seconds "$(or $(SECONDS),600)" $(if $(SEED),--seed $(SEED))
clauses:
	@sh deploy/bootstrap.sh clauses $(WORDS)
fuzz:
	@sh deploy/bootstrap.sh fuzz --seconds "$(or $(SECONDS),600)" $(if $(SEED),--seed $(SEED))
test durations:
	@sh deploy/bootstrap.sh $@ $(FILES)
setup demo lint quick bench engines trino presto planners catalogs stores ranges resolve pythons:
	@sh deploy/bootstrap.sh $@
