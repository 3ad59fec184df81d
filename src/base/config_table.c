/* SPDX-License-Identifier: Apache-2.0 */
/* The table of settings (config_table.h). */
#include <limits.h>
#include <stddef.h>

#include "config_table.h"

#define FALLBACK_INT(value) .number = (value)
#define FALLBACK_SIZE(value) .number = (value)
#define FALLBACK_ENUM(value) .number = (value)
#define FALLBACK_STR(value) .text = (value)

const struct row cvy_rows[SETTINGS] = {
#define SETTING_ROW(field, env, type, fallback, meaning) \
	[SET_##field] = { #field, \
			  env, \
			  meaning, \
			  TYPE_##type, \
			  offsetof(struct covey_config, field), \
			  offsetof(struct cvy_config, field), \
			  FALLBACK_##type(fallback) },
	CVY_CONFIG_LIST(SETTING_ROW)
#undef SETTING_ROW
#define SETTING_ROW(field, env, type, fallback, meaning) \
	[SET_##field] = { #field, \
			  env, \
			  meaning, \
			  TYPE_##type, \
			  NO_FIELD, \
			  offsetof(struct cvy_config, field), \
			  FALLBACK_##type(fallback) },
		CVY_TEST_CONFIG_LIST(SETTING_ROW)
#undef SETTING_ROW
};

const struct bound cvy_bounds[SETTINGS] = {
	[SET_store] = { .right = "redis://[user:password@]host[:port][/db], or a URL of rediss://, redis+unix:// or "
				 "redis+sentinel://" },
	[SET_group] = { .right = "1 to 64 letters, digits, '.', '_' or '-'" },
	[SET_rank] = { -1, COVEY_MAX_RANKS - 1, "a whole number from -1 (any) to 4095", { NULL } },
	[SET_world] = { 0, COVEY_MAX_RANKS, "a whole number from 1 to 4096, or 0 (not given)", { NULL } },
	[SET_max_ranks] = { 1, COVEY_MAX_RANKS, "a whole number from 1 to 4096", { NULL } },
	[SET_create] = { 1, 2, "first or never", { "never", "first" } },
	[SET_admission] = { 0, 1, "auto or manual", { "auto", "manual" } },
	[SET_transport] = { 0, 4, "auto, shm, tcp, verbs or verbs,tcp", { "auto", "shm", "tcp", "verbs", "verbs,tcp" } },
	[SET_host] = { .right = "at most 64 letters, digits, '.', '_', ':' or '-'" },
	[SET_interface] = { .right = "interfaces (eth0, eth, =eth0), addresses or networks (10.0.0.0/8) "
				     "with commas between, or ^ and all that are left out; at most 32" },
	[SET_secret_file] = { .right = "the path of a file" },
	[SET_join_ms] = { 1, INT_MAX, "milliseconds, at least 1", { NULL } },
	[SET_heartbeat_ms] = { 1, 1000, "milliseconds from 1 to 1000", { NULL } },
	[SET_hang_ms] = { -1, 3600000, "milliseconds from 2 to 3600000, or -1 (never)", { NULL } },
	[SET_tcp_connections] = { 1, 8, "a whole number from 1 to 8", { NULL } },
	[SET_link_ms] = { -1, 3600000, "milliseconds from 4 to 3600000, or -1 (never)", { NULL } },
	[SET_lease_ms] = { -1, 3600000, "milliseconds from 1 to 3600000, or -1 (never)", { NULL } },
	[SET_slot_bytes] = { 4096, 1ll << 30, "a multiple of 4096 from 4096 to 1G", { NULL } },
	[SET_window_bytes] = { 65536, 1ll << 42, "a multiple of 4096 from 64K to 4096G", { NULL } },
	[SET_metrics] = { .right = "unix:PATH, in which {rank}, {pid} and {group} are filled in; or tcp:PORT or "
				   "tcp:ADDRESS:PORT, with a + to add the rank to the port" },
	[SET_flight] = { .right = "the path of a directory" },
	[SET_device] = { .right = "the number of a CUDA device from 0 to 1023, local or none" },
	[SET_device_window_bytes] = { 0, 1ll << 40, "a multiple of 2M, at most 1024G", { NULL } },
	[SET_device_memory] = { 0, 2, "auto, vmm or ipc", { "auto", "vmm", "ipc" } },
	[SET_topology] = { .right = "HOSTSxRANKS, two whole numbers from 1 to 4096, as 2x2" },
	[SET_queues] = { .right = "direct, assisted, ring or tcp, each once, with commas between" },
	[SET_algo] = { .right = "OPERATION[:BYTES]=ALGORITHM,... without spaces; BYTES as 64K-1M, 1M-, -8 or 64K" },
	[SET_late_ms] = { 0, 3600000, "milliseconds from 1 to 3600000, or 0 (none)", { NULL } },
	[SET_late] = { 0, 1, "wait or evict", { "wait", "evict" } },
	[SET_rdma_device] = { .right = "NAME, NAME:PORT or NAME:PORT/GID, without spaces" },
	[SET_rdma_ms] = { 8, 60000, "milliseconds from 8 to 60000", { NULL } },
	[SET_undo_bytes] = { 0, 1ll << 46, "bytes, at most 65536G", { NULL } },
	[SET_job] = { .right = "printable characters without spaces" },
};
