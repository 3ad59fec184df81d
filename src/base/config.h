/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One registry of all settings: name, environment variable, default, meaning. covey_config, the
 * URL's parameters and the environment are read through it; the manual's table is printed from it.
 */
#ifndef CVY_CONFIG_H
#define CVY_CONFIG_H

#include <stdio.h>

#include "covey_device.h"
#include "error.h"

/* X(field, ENV, type (INT, SIZE, STR, ENUM), default, "meaning") */
#define CVY_CONFIG_LIST(X) \
	X(store, "COVEY_STORE", STR, "", \
	  "store URL: redis://[user:password@]host[:port][/db] (rediss:// with TLS, and then " \
	  "?ca=FILE&cert=FILE&key=FILE if needed), redis+unix:///path[?db=N] or " \
	  "redis+sentinel://[user:password@]host[:port],.../MASTER[/db]; an IPv6 address stands in [ ], and other " \
	  "settings may follow as parameters") \
	X(group, "COVEY_GROUP", STR, "covey", "name of the group: letters, digits, . _ - (at most 64)") \
	X(rank, "COVEY_RANK", INT, -1, "rank to take; -1: any free one (a launcher's is read too)") \
	X(world, "COVEY_WORLD", INT, 0, \
	  "processes that form the group (a launcher's number is read too); 0: not given, as with create=never") \
	X(max_ranks, "COVEY_MAX_RANKS", INT, 64, "ranks the group can ever have, at most 4096") \
	X(create, "COVEY_CREATE", ENUM, COVEY_CREATE_FIRST, \
	  "first: form the group if it is not there; never: replacements and joiners") \
	X(admission, "COVEY_ADMISSION", ENUM, 0, \
	  "auto: joiners come in at the next safe point; manual: when asked for") \
	X(transport, "COVEY_TRANSPORT", ENUM, 0, \
	  "auto (shm on one host, tcp between), shm, tcp (on one host, too), verbs (shm on one host, RDMA between), " \
	  "or " \
	  "verbs,tcp: tcp where RDMA is not to be had") \
	X(host, "COVEY_HOST", STR, "", "identity of this host, to make one host act as several") \
	X(interface, "COVEY_INTERFACE", STR, "", \
	  "interfaces that peers on other hosts dial, in order: names (eth0), their beginnings (eth), just that name " \
	  "(=eth0), addresses, networks (10.0.0.0/8, fd00::/8), or ^ and all that are left out (^docker,lo); empty: " \
	  "all, those " \
	  "without carrier, bridges and networks of containers last") \
	X(secret_file, "COVEY_SECRET_FILE", STR, "", "file with the group secret; empty: the store holds it") \
	X(join_ms, "COVEY_JOIN_MS", INT, 60000, "bound on joining") \
	X(heartbeat_ms, "COVEY_HEARTBEAT_MS", INT, 10, "beat on one host while idle (1 ms while an operation waits)") \
	X(hang_ms, "COVEY_HANG_MS", INT, 100, "silence on one host that raises suspicion; -1: never") \
	X(tcp_connections, "COVEY_TCP_CONNECTIONS", INT, 1, \
	  "connections of a link between hosts, for large messages; the smaller number of both sides counts") \
	X(link_ms, "COVEY_LINK_MS", INT, 1000, "silence on a link between hosts; -1: never") \
	X(lease_ms, "COVEY_LEASE_MS", INT, 5000, "silence in the store, alike on all ranks; -1: never") \
	X(slot_bytes, "COVEY_SLOT_BYTES", SIZE, 131072, "bytes of one slot: a multiple of 4096") \
	X(window_bytes, "COVEY_WINDOW_BYTES", SIZE, 4294967296, "addresses of one rank's window, touched as used") \
	X(undo_bytes, "COVEY_UNDO_BYTES", SIZE, 67108864, "in-place inputs up to here are kept until the outcome") \
	X(metrics, "COVEY_METRICS", STR, "", \
	  "where to serve metrics for Prometheus: unix:PATH, in which {rank}, {pid} and {group} are filled in, or " \
	  "tcp:[ADDRESS:]PORT[+], + adds the rank; see docs/operate/metrics.md") \
	X(flight, "COVEY_FLIGHT", STR, "", \
	  "directory for the record of the last operations, kept when the process dies; none: in its memory") \
	X(algo, "COVEY_ALGO", STR, "", \
	  "algorithms to take where they can be: OPERATION[:BYTES]=ALGORITHM,..., BYTES as 64K-1M, 1M-, -8 or 64K; " \
	  "alike on all ranks; see ep-perf --explain") \
	X(late_ms, "COVEY_LATE_MS", INT, 0, \
	  "deadline of dispatch and combine calls that give none: sources that are late are masked; 0: none") \
	X(late, "COVEY_LATE", ENUM, 0, \
	  "wait: a rank that was masked as late stays a member; evict: who masked it asks for its removal") \
	X(device, "COVEY_DEVICE", STR, "none", \
	  "CUDA device for operations on device memory: a number, local (the launcher's local rank) or none") \
	X(device_window_bytes, "COVEY_DEVICE_WINDOW_BYTES", SIZE, 0, \
	  "device memory that can be registered (covey_device_mem_alloc), alike on all ranks; 0: none") \
	X(device_memory, "COVEY_DEVICE_MEMORY", ENUM, 0, \
	  "how peers map memory of the device, alike on all ranks: auto (vmm where the device has it, else ipc), vmm " \
	  "or " \
	  "ipc") \
	X(queues, "COVEY_QUEUES", STR, "", \
	  "how devices reach ranks of other hosts, the first that both have: direct (GPU threads ring an mlx5 " \
	  "adapter), assisted (a thread copies the doorbell), ring (a proxy posts to the adapter), tcp (a proxy over " \
	  "tcp); empty: in this order") \
	X(rdma_device, "COVEY_RDMA_DEVICE", STR, "", \
	  "RDMA device: NAME, NAME:PORT or NAME:PORT/GID (its index); empty: one behind an address of this machine") \
	X(rdma_ms, "COVEY_RDMA_MS", INT, 500, \
	  "an RDMA peer that does not answer what was sent is lost after this, rounded down to a power of two of 29 " \
	  "us") \
	X(job, "COVEY_JOB", STR, "", \
	  "identity of the job whose processes form the group: processes of two jobs never form one group (a " \
	  "launcher's is read too); empty: not known")

/* Settings of tests: no field of covey_config, no line of the manual but that of CVY_TOOL_ENV_LIST. As CVY_CONFIG_LIST. */
#define CVY_TEST_CONFIG_LIST(X) X(topology, "COVEY_TEST_TOPOLOGY", STR, "", "")

/* Settings that must be the same on all ranks of a group: the store compares them when a rank joins. */
#define CVY_ALIKE_LIST(X) \
	X(slot_bytes) \
	X(window_bytes) \
	X(device_window_bytes) \
	X(device_memory) \
	X(topology) \
	X(lease_ms) \
	X(algo)

/* Variables that are read elsewhere, for the same table: X(ENV, "meaning") */
#define CVY_ENV_LIST(X) \
	X("COVEY_LOG", "error, warn (default), info or debug") \
	X("COVEY_FAULT", "fault plan of this process, see src/p2p/fault.h") \
	X("COVEY_DEVICE_OVERLAP", "1 (default): kernels are launched while those before them in the stream end, by " \
				  "programmatic dependent launch; 0: after that") \
	X("COVEY_TRACE", \
	  "file to which each rank adds a trace of its dispatches and combines on a device when it closes " \
	  "the group, as Chrome's JSON; kernels must be built with -DCOVEY_TRACE=ON") \
	X("COVEY_STORE_PASSWORD", "password of the store, kept out of URLs and argv") \
	X("COVEY_STORE_CA", "with rediss://: file of the authorities that are trusted; none: the system's") \
	X("COVEY_STORE_CERT", "with rediss://: file of this process's certificate, where the store asks for one") \
	X("COVEY_STORE_KEY", "with rediss://: file of its key")

/*
 * Variables of scripts and tests. The library does not read them and does not warn of them. Those of tests begin with
 * COVEY_TEST_. X(ENV, "meaning")
 */
#define CVY_TOOL_ENV_LIST(X) \
	X("COVEY_BUILD", "build folder that tests/chaos/run, tests/hwcheck and tests/rdma-vm/run take") \
	X("COVEY_TREE", "checkout for programs that are built against one") \
	X("COVEY_LIBRARY", "path of libcovey.so for the Python package; unset: its own, or that of the loader") \
	X("COVEY_AS", "names under which covey.aliases gives buffers: nixl_ep,deep_ep,mooncake; unset: none") \
	X("COVEY_FUZZ_BUILD", "build folder of tests/fuzz/run") \
	X("COVEY_MODELS_KEEP", "folder where tests/models/run keeps what failed") \
	X("COVEY_VM_CACHE", "folder of the machine that tests/rdma-vm/run starts") \
	X("COVEY_TEST_ALL", "1: tests run their whole product, not a choice from it") \
	X("COVEY_TEST_ALLOC", "MOMENT:N: the one failing allocation that test-collectives-alloc runs again") \
	X("COVEY_TEST_BUILD", "build folder of tests/run and tests/sim/run") \
	X("COVEY_TEST_SEED", "seed of tests that draw") \
	X("COVEY_TEST_TIMES", "file to which tests/count adds the seconds of each test") \
	X("COVEY_TEST_VENV", "virtual environment of tests/python/run; unset: in the user's cache") \
	X("COVEY_TEST_TOPOLOGY", \
	  "HOSTSxRANKS, as 2x2: devices act as if so many hosts had so many ranks each, in " \
	  "ascending order; what crosses goes by queues. With COVEY_QUEUES=copy a proxy copies " \
	  "it within the machine. Alike on all ranks")

/*
 * Variables of launchers, used if COVEY_RANK and COVEY_WORLD are not set: the first row that applies. A launcher of a
 * lower row may have started one of a higher row, as Slurm does with mpirun. A row with `both` needs both variables:
 * else a shell inside an allocation would pass for its rank 0. Those of ep-run and torchrun also count alone.
 * X(rank, world, both, "meaning")
 */
#define CVY_LAUNCHER_LIST(X) \
	X("RANK", "WORLD_SIZE", 0, "ep-run, torchrun") \
	X("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", 1, "Open MPI (mpirun)") \
	X("PMI_RANK", "PMI_SIZE", 1, "launchers with PMI: MPICH (mpiexec), Intel MPI, Cray") \
	X("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", 1, "Slurm (srun)")

/*
 * Variables that name the job if COVEY_JOB does not: those of the launcher whose number of ranks is taken, the first
 * row whose variables are set. The value must be the same for all processes that this launcher counts, and for no
 * others. An allocation of Slurm is no such value: it may run several jobs, and each step counts its own processes.
 * X(world, first, second or "", "meaning")
 */
#define CVY_JOB_LIST(X) \
	X("WORLD_SIZE", "TORCHELASTIC_RUN_ID", "", "torchrun, with a run id other than none") \
	X("OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE", "", "Open MPI 5") \
	X("OMPI_COMM_WORLD_SIZE", "OMPI_MCA_ess_base_jobid", "", "Open MPI 4") \
	X("SLURM_STEP_NUM_TASKS", "SLURM_JOB_ID", "SLURM_STEP_ID", "Slurm (srun): job and step")

#define CVY_JOB_MAX 32 /* characters of an identity; a longer one ends in `~` and its hash, 17 characters */

struct cvy_config { /* resolved: every field set, strings owned */
	char *store, *group, *host, *interface, *secret_file, *metrics, *flight, *algo, *device, *rdma_device,
		*topology, *queues, *job;
	int rank, world, max_ranks, create, admission, transport, tcp_connections;
	int join_ms, heartbeat_ms, hang_ms, link_ms, lease_ms, late_ms, late, rdma_ms, device_memory;
	size_t slot_bytes, window_bytes, undo_bytes, device_window_bytes;
};

/* Explicit fields first, then the URL's parameters (stripped from @store), then environment, then defaults.
 * COVEY_ERR_INVAL: @box has a cause with the setting, its wrong value and a right one. */
int cvy_config_resolve(const struct covey_config *from, struct cvy_config *to, struct cvy_errbox *box);
void cvy_config_clear(struct cvy_config *config);

/* `name=value ...` of settings that must be the same, no spaces in values; max_ranks if @founder. NULL: no memory. */
char *cvy_config_alike(const struct cvy_config *config, int founder);

/* Parses "2x2": 1, and both numbers; 0: malformed. */
int cvy_topology_parse(const char *text, int *hosts, int *ranks);

/* Parses "direct,tcp": 1, and enum cvy_queues_way in that order, each once, then 0; returns 0 if malformed. */
enum cvy_queues_way {
	CVY_QUEUES_COPY = 1,
	CVY_QUEUES_DIRECT,
	CVY_QUEUES_ASSISTED,
	CVY_QUEUES_RING,
	CVY_QUEUES_TCP,
	CVY_QUEUES_WAYS
};
int cvy_queues_parse(const char *text, int way[CVY_QUEUES_WAYS]);
const char *cvy_queues_word(int way);

/* The manual's tables of settings and variables, in Markdown. */
void cvy_config_manual(FILE *file);
void cvy_launcher_manual(FILE *file); /* the table of the launchers */
void cvy_job_manual(FILE *file);      /* variables that name a job, settings that are compared */
void cvy_config_limits(FILE *file);   /* valid values of each setting, for the page of limits */
void cvy_tool_manual(FILE *file);     /* the variables of scripts and tests */

/* Warns, once a process, of names in the environment that look like covey's and are not: see environment.c. */
void cvy_environment_check(void);
const char *cvy_environment_nearest(const char *name); /* NULL: none is near */

#endif
