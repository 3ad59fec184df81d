/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looks for conditions that would keep a group from working on this machine. Each check prints the value it saw and, if
 * that is not right, the change that helps. It changes nothing, except that a group of its own is made and closed in
 * the store. `bad` would stop a group of the given size, `look` may hurt it.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "admin.h"
#include "cores.h"
#include "interface.h"

#define NO_BOUND (1ll << 60) /* version 1 of cgroups writes "none" as a number that is larger */

enum verdict { GOOD, LOOK, BAD };

struct doctor {
	struct admin *a;
	int ranks; /* of the planned group */
	int bad;
	json_t *json; /* NULL: print */
};

static void __attribute__((format(printf, 5, 6)))
find(struct doctor *d, enum verdict verdict, const char *name, const char *change, const char *format, ...)
{
	static const char *const words[] = { "good", "look", "bad" };
	char saw[400];
	va_list args;

	va_start(args, format);
	vsnprintf(saw, sizeof(saw), format, args);
	va_end(args);
	d->bad += verdict == BAD;
	if (d->json) {
		json_t *one = json_pack("{s:s, s:s, s:s}", "check", name, "verdict", words[verdict], "saw", saw);

		if (verdict != GOOD)
			json_object_set_new(one, "change", json_string(change));
		json_array_append_new(d->json, one);
		return;
	}
	printf("%-5s %-14s %s\n", words[verdict], name, saw);
	if (verdict != GOOD)
		printf("%-5s %-14s -> %s\n", "", "", change);
}

/* The first word of a file of /proc or /sys. -1: there is none. */
static long long number_in(const char *path)
{
	FILE *file = fopen(path, "re");
	long long value = -1;

	if (!file)
		return -1;
	if (fscanf(file, "%lld", &value) != 1)
		value = -1;
	fclose(file);
	return value;
}

static void check_kernel(struct doctor *d)
{
	struct utsname name;
	int major = 0, minor = 0;

	uname(&name);
	sscanf(name.release, "%d.%d", &major, &minor);
	find(d, major > 5 || (major == 5 && minor >= 16) ? GOOD : LOOK, "kernel",
	     "Linux 5.16 or newer has futex_waitv; an older one is told of a death by heartbeats only", "Linux %s",
	     name.release);
}

static void check_descriptors(struct doctor *d)
{
	rlim_t need = (rlim_t)(14 + 5 * (d->ranks - 1) + 64);
	struct rlimit files;

	getrlimit(RLIMIT_NOFILE, &files);
	find(d, files.rlim_cur >= need ? GOOD : BAD, "descriptors", "ulimit -n N, or LimitNOFILE= of the service",
	     "%llu may be open in one process; %d ranks on one host and 64 of the program's own take %llu",
	     (unsigned long long)files.rlim_cur, d->ranks, (unsigned long long)need);
}

/* The smallest limit in a file of this process's cgroups and of their parents; -1: none. */
static long long group_bound(const char *controller, const char *file_v1, const char *file_v2)
{
	FILE *groups = fopen("/proc/self/cgroup", "re");
	long long least = -1;
	char line[4096], path[4300];

	while (groups && fgets(line, sizeof(line), groups)) {
		char *list = strchr(line, ':'), *group = list ? strchr(list + 1, ':') : NULL, *slash;

		if (!group)
			continue;
		*group++ = '\0';
		group[strcspn(group, "\n")] = '\0';
		if (list[1] && strcmp(list + 1, controller))
			continue;
		do {
			long long value;

			snprintf(path, sizeof(path), "/sys/fs/cgroup%s%s%s/%s", list[1] ? "/" : "", list + 1, group,
				 list[1] ? file_v1 : file_v2);
			value = number_in(path); /* "max" is none */
			if (value >= 0 && value < NO_BOUND && (least < 0 || value < least))
				least = value;
			slash = strrchr(group, '/');
			if (slash)
				*slash = '\0';
		} while (slash);
	}
	if (groups)
		fclose(groups);
	return least;
}

static void check_processes(struct doctor *d)
{
	const long long need = (long long)d->ranks * 5, pids = group_bound("pids", "pids.max", "pids.max");
	struct rlimit limit;

	getrlimit(RLIMIT_NPROC, &limit);
	find(d, limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= (rlim_t)need ? GOOD : BAD, "threads",
	     "ulimit -u N", "%lld may run at a time; each rank has 4 of its own",
	     limit.rlim_cur == RLIM_INFINITY ? -1LL : (long long)limit.rlim_cur);
	if (pids >= 0 && pids < need)
		find(d, BAD, "pids.max", "a larger pids.max (--pids-limit of a container, TasksMax= of a service)",
		     "%lld processes and threads may be in this cgroup; %d ranks take %lld", pids, d->ranks, need);
}

static void check_memlock(struct doctor *d)
{
	const char *transport = getenv("COVEY_TRANSPORT");
	const bool rdma = transport && !strncmp(transport, "verbs", 5);
	struct rlimit limit;

	getrlimit(RLIMIT_MEMLOCK, &limit);
	if (limit.rlim_cur == RLIM_INFINITY)
		find(d, GOOD, "memlock", "", "unlimited");
	else
		find(d, rdma ? LOOK : GOOD, "memlock", "ulimit -l unlimited, or LimitMEMLOCK= of the service",
		     "%llu KiB; %s", (unsigned long long)limit.rlim_cur / 1024,
		     rdma ? "windows are locked as they are used over RDMA"
			  : "nothing is locked over shared memory and tcp");
}

/* A window is a file without a name, and mirrors of peers on other hosts are private memory. */
static void check_windows(struct doctor *d)
{
	const unsigned long long bytes = tool_setting("COVEY_WINDOW_BYTES", 4294967296);
	struct rlimit limit;

	getrlimit(RLIMIT_FSIZE, &limit);
	find(d, limit.rlim_cur >= bytes ? GOOD : BAD, "file size",
	     "ulimit -f unlimited, or a smaller COVEY_WINDOW_BYTES",
	     limit.rlim_cur == RLIM_INFINITY ? "unlimited" : "a file may have %llu bytes, and a window has %llu",
	     (unsigned long long)limit.rlim_cur, bytes);
	getrlimit(RLIMIT_DATA, &limit);
	find(d, limit.rlim_cur >= bytes * (unsigned)d->ranks ? GOOD : LOOK, "private memory",
	     "ulimit -d unlimited, or a smaller COVEY_WINDOW_BYTES",
	     limit.rlim_cur == RLIM_INFINITY ? "unlimited"
					     : "%llu KiB; with peers on other hosts a mirror of each is %llu KiB of it",
	     (unsigned long long)limit.rlim_cur / 1024, bytes / 1024);
}

/* Windows are reserved as addresses: a limit of addresses, or a kernel that counts them as memory, would refuse. */
static void check_addresses(struct doctor *d)
{
	const unsigned long long most = tool_setting("COVEY_MAX_RANKS", 64);
	const unsigned long long windows = (most > (unsigned)d->ranks ? most : (unsigned)d->ranks) + 1;
	size_t bytes = (size_t)(tool_setting("COVEY_WINDOW_BYTES", 4294967296) * windows);
	struct rlimit limit;
	char bound[60] = "";
	void *at;

	at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	getrlimit(RLIMIT_AS, &limit);
	if (limit.rlim_cur != RLIM_INFINITY)
		snprintf(bound, sizeof(bound), ", ulimit -v is %llu KiB", (unsigned long long)limit.rlim_cur / 1024);
	find(d, at != MAP_FAILED ? GOOD : BAD, "addresses",
	     "ulimit -v unlimited, or a smaller COVEY_WINDOW_BYTES or COVEY_MAX_RANKS",
	     "%zu MiB for %llu windows can%s be reserved; vm.overcommit_memory is %lld%s", bytes >> 20, windows,
	     at != MAP_FAILED ? "" : "not", number_in("/proc/sys/vm/overcommit_memory"), bound);
	if (at != MAP_FAILED)
		munmap(at, bytes);
	if (number_in("/proc/sys/vm/overcommit_memory") == 2)
		find(d, LOOK, "overcommit", "sysctl vm.overcommit_memory=0, or room in vm.overcommit_ratio",
		     "the kernel refuses memory that it may not have: windows grow while a group works");
}

static void check_stack(struct doctor *d)
{
	struct rlimit limit;

	getrlimit(RLIMIT_STACK, &limit);
	if (limit.rlim_cur == RLIM_INFINITY)
		find(d, GOOD, "stack", "", "unlimited; threads of the library have 8 MiB of addresses");
	else
		find(d, GOOD, "stack", "", "%llu KiB; threads of the library have 8 MiB of addresses",
		     (unsigned long long)limit.rlim_cur / 1024);
}

/* Slots are memory of each rank: 8 and a page. */
static void check_group_memory(struct doctor *d)
{
	const unsigned long long need = (4096 + 8 * tool_setting("COVEY_SLOT_BYTES", 131072)) * (unsigned)d->ranks;
	const long long most = group_bound("memory", "memory.limit_in_bytes", "memory.max");

	if (most >= 0)
		find(d, (unsigned long long)most > need ? GOOD : BAD, "cgroup memory",
		     "more memory for this container or service, or a smaller COVEY_SLOT_BYTES",
		     "%lld MiB; windows of %d ranks take %llu, and buffers of experts more", most >> 20, d->ranks,
		     need >> 20);
}

static void check_directory(struct doctor *d)
{
	const char *why, *dir = tool_tmp(&why);

	if (why)
		find(d, LOOK, "directory", "a TMPDIR without that", "TMPDIR %s: ep-run takes /tmp", why);
	if (access(dir, W_OK | X_OK))
		find(d, LOOK, "directory", "TMPDIR=DIRECTORY that can be written; with a named store none is needed",
		     "%.100s: %s; the private store of ep-run stands there", dir, strerror(errno));
	else
		find(d, GOOD, "directory", "", "%.100s can be written; the private store of ep-run stands there", dir);
}

static void check_shared_memory(struct doctor *d)
{
	size_t need = 4096 + (size_t)8 * 131072;
	struct statvfs fs;
	int fd = memfd_create("ep-admin", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int err = fd < 0 ? errno : posix_fallocate(fd, 0, (off_t)need);

	while (err == EINTR)
		err = posix_fallocate(fd, 0, (off_t)need);
	find(d, err ? BAD : GOOD, "shared memory",
	     "more memory for this container or user, or a smaller COVEY_SLOT_BYTES", "a window of %zu KiB: %s",
	     need / 1024, err ? strerror(err) : "can be had");
	if (!err && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW))
		find(d, BAD, "seals", "a kernel with memfd seals", "a window cannot be sealed: %s", strerror(errno));
	if (fd >= 0)
		close(fd);
	if (!statvfs("/dev/shm", &fs))
		find(d, GOOD, "/dev/shm", "", "%llu MiB, %llu free; windows do not stand there",
		     (unsigned long long)fs.f_blocks * fs.f_frsize >> 20,
		     (unsigned long long)fs.f_bavail * fs.f_frsize >> 20);
}

/* Permission to inspect processes: members of one host open each other's windows by passing descriptors. */
static void check_signs(struct doctor *d)
{
	int fd = (int)syscall(SYS_pidfd_open, getpid(), 0);

	find(d, fd >= 0 ? GOOD : LOOK, "pidfd", "a kernel, or a seccomp profile, that allows pidfd_open",
	     fd >= 0 ? "can be opened" : "cannot be opened: a launcher proves deaths later");
	if (fd >= 0)
		close(fd);
	find(d, !access("/proc/self/stat", R_OK) ? GOOD : LOOK, "/proc", "mount -t proc proc /proc",
	     "stopped peers are told from slow ones by it");
}

/* Cores of this process, not of the machine: a mask or a quota may leave fewer. */
static void check_cores(struct doctor *d)
{
	struct cvy_cores c;
	char quota[80] = "";
	uint32_t most;

	cvy_cores_get(&c);
	most = c.quota && c.quota < c.cores ? c.quota : c.cores;
	if (c.quota)
		snprintf(quota, sizeof(quota), ", a cgroup's quota is worth %u", c.quota);
	find(d, d->ranks <= (int)most ? GOOD : LOOK, "cores",
	     "fewer ranks on this host, more cores (taskset, cpuset, the quota of the container), or accept slower "
	     "small operations",
	     "%u of %ld may be used%s; %d ranks%s", c.cores, sysconf(_SC_NPROCESSORS_ONLN), quota, d->ranks,
	     d->ranks <= (int)most ? "" : ", if all of them are to run here");
}

static void check_interfaces(struct doctor *d)
{
	static struct cvy_interface list[CVY_INTERFACES];
	const char *setting = getenv("COVEY_INTERFACE"), *wrong;
	char all[300], first[100];
	int taken, count;

	setting = setting ? setting : "";
	wrong = cvy_interface_wrong(setting);
	count = cvy_interface_list(wrong ? "" : setting, list, CVY_INTERFACES, &taken);
	if (wrong || !taken) {
		cvy_interface_print(list, count, all, sizeof(all));
		find(d, *setting ? BAD : LOOK, "interface",
		     *setting ? "COVEY_INTERFACE=NAME, ADDRESS or NETWORK of this host, or ^NAME,..."
			      : "an interface that is up",
		     "COVEY_INTERFACE=%.60s: %s; there are: %s", setting,
		     wrong ? wrong : "fits no address of this host", count ? all : "none");
		return;
	}
	snprintf(first, sizeof(first), "%s%s%s", list[0].name, list[0].name[0] ? " " : "", list[0].text);
	cvy_interface_print(list + 1, count - 1, all, sizeof(all));
	if (list[0].kind == CVY_INTERFACE_LOOPBACK && !*setting)
		find(d, LOOK, "interfaces", "an interface that is up, for peers on other hosts",
		     "none but the loopback: a group can be on this host only");
	else
		find(d, list[0].kind == CVY_INTERFACE_PLAIN || *setting ? GOOD : LOOK, "interfaces",
		     "COVEY_INTERFACE, or an interface that other hosts reach",
		     "%s is told first to peers on other hosts%s%s%s%s%s", first,
		     list[0].kind == CVY_INTERFACE_PLAIN ? "" : ", though: ", cvy_interface_why(list[0].kind),
		     *setting ? ", by COVEY_INTERFACE" : "", count > 1 ? "; then " : "", all);
}

static void check_ports(struct doctor *d)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), low = 0, high = 0;
	int err = fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof(at)) || listen(fd, 1);
	FILE *file = fopen("/proc/sys/net/ipv4/ip_local_port_range", "re");

	if (file && fscanf(file, "%d %d", &low, &high) != 2)
		low = high = 0;
	if (file)
		fclose(file);
	find(d, err ? BAD : GOOD, "ports", "a firewall or container that lets members listen",
	     "%s; peers on other hosts dial ports %d to %d of this one, which a firewall must let through",
	     err ? strerror(errno) : "one can be listened at", low, high);
	if (fd >= 0)
		close(fd);
}

static void check_clock(struct doctor *d)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	find(d, t.tv_sec > 1700000000 ? GOOD : LOOK, "clock",
	     "set the time, for certificates and the age of beats here",
	     "%lld s since 1970; members only use the clock since boot", (long long)t.tv_sec);
}

static bool store_named(const struct doctor *d)
{
	const char *url = d->a->store ? d->a->store : getenv("COVEY_STORE");

	return url && *url;
}

/* The remedy for an error of the store. */
static const char *store_change(int err, const char *cause)
{
	if (strstr(cause, "grant "))
		return "the permission that is named; docs/operate/store.md has all that covey needs";
	return err == COVEY_ERR_AUTH	  ? "the right password in COVEY_STORE or COVEY_STORE_PASSWORD"
	       : err == COVEY_ERR_VERSION ? "Redis 6.2 or newer, and the same version of covey everywhere"
	       : err == COVEY_ERR_INVAL	  ? "a right URL, or a server that has what is named"
					  : "the address, the server, or the network between";
}

/* A group that is missing and one that exists: either answer means that scripts run. */
static bool check_store(struct doctor *d)
{
	uint64_t begin = tool_now_ns();
	struct covey_error_info info;
	int err;

	if (!store_named(d)) {
		find(d, GOOD, "store", "", "none is named (COVEY_STORE, --store): ep-run brings its own");
		return false;
	}
	err = admin_try(d->a);
	covey_last_error(NULL, &info);
	if (err && err != COVEY_ERR_REFUSED) {
		find(d, BAD, "store", store_change(err, info.cause), "%s: %s", covey_strerror(err), info.cause);
		return false;
	}
	if (err)
		find(d, GOOD, "store", "", "answers in %.1f ms; it has no group %s yet",
		     (double)(tool_now_ns() - begin) / 1e6, d->a->group);
	else
		find(d, GOOD, "store", "", "answers in %.1f ms; group %s is in phase %s, epoch %" PRIu64,
		     (double)(tool_now_ns() - begin) / 1e6, d->a->group, d->a->now.phase, d->a->now.epoch);
	return true;
}

static void ignore(void *ctx, const char *key, const char *value)
{
	(void)ctx, (void)key, (void)value;
}

static void ignore_line(void *ctx, int level, const char *line)
{
	(void)ctx, (void)level, (void)line;
}

/* The whole life of a group of one rank: 0, or the error of the first thing that failed. */
static int live_once(const char *store, const char *name)
{
	static const char *const own[] = { "COVEY_METRICS",
					   "COVEY_FLIGHT",
					   "COVEY_FAULT",
					   "COVEY_TEST_TOPOLOGY",
					   "COVEY_CREATE",
					   "COVEY_TRANSPORT",
					   "COVEY_DEVICE_WINDOW_BYTES" };
	static const char *const argv[] = { "ask", "forget" };
	struct covey_config config = COVEY_CONFIG_INIT;
	struct covey_group *group;
	int err;

	for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++) /* settings of the job, not of the store */
		unsetenv(own[i]);
	config.store = store;
	config.group = name;
	config.rank = 0;
	config.world = config.max_ranks = 1;
	config.join_ms = 5000;
	config.slot_bytes = 4096;
	config.window_bytes = 1 << 20;
	config.device = "none";
	err = covey_join(&config, &group);
	if (err)
		return err;
	err = covey_leave(group, tool_now_ns() + UINT64_C(5000000000));
	covey_close(group);
	return err ? err : covey_admin_call(store, name, 2, argv, tool_now_ns() + UINT64_C(5000000000), ignore, NULL);
}

/* A replica or a full server cannot be written, a user may lack a permission that only some of a group's calls need. */
static void check_use(struct doctor *d)
{
	struct covey_error_info info;
	char name[48];
	int err;

	snprintf(name, sizeof(name), "doctor.%d.%llx", (int)getpid(), (unsigned long long)tool_now_ns());
	covey_log_set(ignore_line, NULL, 0);
	err = live_once(d->a->store, name);
	covey_log_set(NULL, NULL, 0);
	covey_last_error(NULL, &info);
	if (err)
		find(d, BAD, "store use", store_change(err, info.cause), "a group of one rank, named %s: %s: %s", name,
		     covey_strerror(err), info.cause);
	else
		find(d, GOOD, "store use", "", "a group of one rank was formed, ended and forgotten");
}

static void check_versions(struct doctor *d)
{
	find(d, GOOD, "versions", "", "ep-admin %s, library %d.%d.%d", COVEY_VERSION, COVEY_VERSION_MAJOR,
	     COVEY_VERSION_MINOR, COVEY_VERSION_PATCH);
}

int admin_doctor(struct admin *a)
{
	struct doctor d = { .a = a, .ranks = 64 };
	const char *world = getenv("COVEY_WORLD");

	if (world && atoi(world) > 0 && atoi(world) <= COVEY_MAX_RANKS)
		d.ranks = atoi(world);
	if (a->json)
		d.json = json_array();
	check_versions(&d);
	check_kernel(&d);
	check_cores(&d);
	check_descriptors(&d);
	check_processes(&d);
	check_memlock(&d);
	check_windows(&d);
	check_addresses(&d);
	check_stack(&d);
	check_group_memory(&d);
	check_directory(&d);
	check_shared_memory(&d);
	check_signs(&d);
	check_interfaces(&d);
	check_ports(&d);
	check_clock(&d);
	if (check_store(&d))
		check_use(&d);
	if (d.json) {
		if (!json_dumpf(d.json, stdout, JSON_INDENT(2)))
			putchar('\n');
		json_decref(d.json);
	}
	return d.bad ? EXIT_REFUSED : EXIT_DONE;
}
