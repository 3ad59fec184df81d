/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Another user of this machine: what a member and ep-run open on it is closed to the user `nobody`. Every
 * attempt is first made as the owner, where it must succeed: a wrong path would prove nothing. To become
 * another user takes root; without it all is skipped.
 *
 * labels: redis real
 */
#include "harness.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mesh.h"

#define RANKS 2
#define NOBODY 65534
#define DESCRIPTORS 256 /* of a process, tried one by one */
#define TEXT 16384
#define PATHS 32
#define EP_RUN COVEY_BUILD_DIR "/tools/ep-run"

struct shared {
	uint64_t at[RANKS], stop, lines;
};

struct job {
	struct covey_config config;
	struct shared *shared;
	pid_t pid[RANKS];
	char addr[320];
};

/* ---- what can be opened: as who runs this, how many of the attempts succeed ---- */

static int opens(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

static int opens_dir(const char *path)
{
	DIR *dir = opendir(path);

	if (dir)
		closedir(dir);
	return dir != NULL;
}

static int connects(const char *path)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), done;

	snprintf(to.sun_path, sizeof(to.sun_path), "%s", path);
	done = fd >= 0 && !connect(fd, (struct sockaddr *)&to, sizeof(to));
	if (fd >= 0)
		close(fd);
	return done;
}

/* Memory, descriptors (windows are memfds), and the environment, where a password may stand. */
static int sees_process(pid_t pid)
{
	static const char *const file[] = { "mem", "environ", "maps", "io" };
	int pidfd = (int)syscall(SYS_pidfd_open, pid, 0), seen = 0;
	char path[64];

	for (size_t i = 0; i < sizeof(file) / sizeof(file[0]); i++) {
		snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, file[i]);
		seen += opens(path);
	}
	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	seen += opens_dir(path);
	for (int n = 0; n < DESCRIPTORS; n++) {
		int fd = (int)syscall(SYS_pidfd_getfd, pidfd, n, 0);

		snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, n);
		seen += opens(path) + (fd >= 0);
		if (fd >= 0)
			close(fd);
	}
	if (pidfd >= 0)
		close(pidfd);
	return seen;
}

/* Objects in /dev/shm that bear our name: there should be none at all, windows have no name. */
static int sees_shm(void)
{
	DIR *dir = opendir("/dev/shm");
	int seen = 0;

	for (struct dirent *d = dir ? readdir(dir) : NULL; d; d = readdir(dir))
		seen += strstr(d->d_name, "covey") != NULL;
	if (dir)
		closedir(dir);
	return seen;
}

/* The member's control socket has an abstract name, which anybody may call: 1 if it says a word to who does. */
static int is_answered(const struct job *job)
{
	struct cvy_wire head = { .magic = CVY_WIRE_MAGIC,
				 .version = CVY_WIRE_VERSION - 1, /* is refused in words, if one is heard */
				 .type = CVY_WIRE_HELLO,
				 .bytes = sizeof(struct cvy_hello) };
	const char *why = "";
	char bytes[512];
	int fd = cvy_address_connect(job->addr, CVY_BY_UNIX, "", &why), heard;
	struct pollfd p = { fd, POLLIN, 0 };

	if (fd < 0)
		return 0;
	if (send(fd, &head, sizeof(head), MSG_NOSIGNAL) < 0)
		errno = 0; /* it hung up before: to be seen below */
	must(poll(&p, 1, WATCHDOG_MS) == 1, "the member neither answers nor hangs up");
	heard = recv(fd, bytes, sizeof(bytes), 0) > 0;
	close(fd);
	return heard;
}

/* @look as nobody, in a child: what it sees. */
static int as_nobody(int (*look)(void *arg), void *arg)
{
	int status;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	must(pid >= 0, "fork: %s", strerror(errno));
	if (!pid) {
		int seen;

		if (setgroups(0, NULL) || setgid(NOBODY) || setuid(NOBODY))
			_exit(255);
		seen = look(arg);
		_exit(seen > 200 ? 200 : seen);
	}
	status = harness_reap(pid);
	must(WIFEXITED(status) && WEXITSTATUS(status) != 255, "nobody ended with %x", status);
	return WEXITSTATUS(status);
}

/* ---- a member ---- */

static int member_main(void *arg, int me)
{
	struct job *job = arg;
	struct covey_group *group = harness_join(&job->config, me);
	float send[64] = { 1 }, recv[64];

	for (uint64_t seq = 1; seq <= __atomic_load_n(&job->shared->stop, __ATOMIC_ACQUIRE); seq++) {
		must(!covey_allreduce(send, recv, 64, COVEY_FLOAT32, COVEY_SUM, group, NULL, NULL) && recv[0] == RANKS,
		     "rank %d: operation %llu", me, (unsigned long long)seq);
		__atomic_store_n(&job->shared->at[me], seq, __ATOMIC_RELEASE);
	}
	must(!covey_leave(group, harness_deadline(WATCHDOG_MS)), "rank %d cannot leave", me);
	covey_close(group);
	return 0;
}

static int look_at_member(void *arg)
{
	const struct job *job = arg;

	return sees_process(job->pid[0]) + is_answered(job);
}

/* `m:0` of the group: inc from addr host. */
static void read_address(struct job *job)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	char text[2048] = "";

	snprintf(to.sun_path, sizeof(to.sun_path), "%s", strstr(harness_store(), "://") + 3);
	must(!connect(fd, (struct sockaddr *)&to, sizeof(to)), "%s: %s", to.sun_path, strerror(errno));
	dprintf(fd, "HGET covey:{%s}:g m:0\r\n", job->config.group);
	must(read(fd, text, sizeof(text) - 1) > 0 && sscanf(text, "$%*d %*s %*s %319s", job->addr) == 1, "m:0 is %s",
	     text);
	close(fd);
}

TEST_LOOP(members_are_closed_to_other_users, 0, 2)
{
	struct job job = { .config = harness_config_over(_i, "users", RANKS),
			   .shared = harness_shared(sizeof(*job.shared)) };
	int mine, theirs;

	job.shared->stop = UINT64_MAX;
	for (int r = 0; r < RANKS; r++)
		job.pid[r] = harness_fork(member_main, &job, r);
	harness_until(&job.shared->at[0], 10, "the first operations");
	read_address(&job);
	mine = look_at_member(&job);
	must(mine > 10 && is_answered(&job), "the owner sees only %d things: the attempts are wrong", mine);
	theirs = as_nobody(look_at_member, &job);
	must(!theirs, "another user opens %d things of a member", theirs);
	must(!sees_shm(), "an object in /dev/shm has our name");
	harness_until(&job.shared->at[0], job.shared->at[0] + 30, "operations afterwards");
	__atomic_store_n(&job.shared->stop, job.shared->at[0] + 1000, __ATOMIC_RELEASE);
	for (int r = 0; r < RANKS; r++)
		must(!harness_reap(job.pid[r]), "rank %d ended badly", r);
}

/* ---- files of the tools ---- */

struct tool {
	pid_t pid;
	int out;
	char dir[64]; /* private to it: store, its log */
	char said[TEXT];
};

/* The tool's first words, up to @word or its end. */
static void tool_start(struct tool *tool, const char *const *argv, const char *word)
{
	char *to = tool->said, *end = to + sizeof(tool->said) - 1;
	struct pollfd p = { .events = POLLIN };
	int ends[2];

	must(!pipe2(ends, O_CLOEXEC), "%s", strerror(errno));
	tool->pid = fork();
	must(tool->pid >= 0, "fork: %s", strerror(errno));
	if (!tool->pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(ends[1], STDOUT_FILENO);
		execv(argv[0], (char *const *)argv);
		_exit(99);
	}
	close(ends[1]);
	tool->out = p.fd = ends[0];
	while (!strstr(tool->said, word)) {
		ssize_t n;

		must(poll(&p, 1, WATCHDOG_MS) == 1, "%s hangs after: %s", argv[0], tool->said);
		n = read(p.fd, to, (size_t)(end - to));
		must(n > 0, "%s ended after: %s", argv[0], tool->said);
		to += n;
	}
}

/* What the owner finds there; another user, who cannot list it, is given the names. */
static char paths[PATHS][128];
static int path_count, opened;

static int reaches(const char *path)
{
	return opens(path) || opens_dir(path) || connects(path);
}

static int look_at_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st, (void)type, (void)ftw;
	must(path_count < PATHS, "more than %d files", PATHS);
	snprintf(paths[path_count++], sizeof(paths[0]), "%s", path);
	opened += reaches(path);
	return 0;
}

static int look_at_paths(void *arg)
{
	int seen = 0;

	(void)arg;
	for (int i = 0; i < path_count; i++)
		seen += reaches(paths[i]);
	return seen;
}

static void directory_is_closed(const char *dir)
{
	int theirs;

	path_count = opened = 0;
	must(!nftw(dir, look_at_entry, 8, FTW_PHYS), "%s: %s", dir, strerror(errno));
	must(path_count >= 3 && opened == path_count, "the owner opens %d of %d in %s", opened, path_count, dir);
	theirs = as_nobody(look_at_paths, NULL);
	must(!theirs, "another user opens %d of %d in %s", theirs, path_count, dir);
}

static int look_at_process(void *arg)
{
	return sees_process(*(pid_t *)arg);
}

static void tool_end(struct tool *tool)
{
	kill(tool->pid, SIGTERM);
	harness_reap(tool->pid);
	close(tool->out);
}

/* A mask that takes nothing away is the worst that a user can have set. */
TEST_LOOP(ep_run_keeps_its_store_its_log_and_its_ranks_to_itself, 0, !access(EP_RUN, X_OK))
{
	static const char script[] = "echo at=$COVEY_STORE; echo pid=$$; echo up; exec sleep 1000";
	const char *argv[] = { EP_RUN, "-n", "1", "--", "sh", "-c", script, NULL };
	static struct tool tool;
	pid_t rank;
	char *at;

	umask(0);
	tool_start(&tool, argv, "[0] up\n");
	at = strstr(tool.said, "redis+unix://");
	must(at && sscanf(at, "redis+unix://%63[^\n]", tool.dir) == 1, "%s", tool.said);
	*strrchr(tool.dir, '/') = 0;
	directory_is_closed(tool.dir);
	must(sscanf(strstr(tool.said, "pid="), "pid=%d", &rank) == 1, "%s", tool.said);
	must(look_at_process(&rank) > 4, "the attempts are wrong: the owner sees nothing of rank 0");
	must(!as_nobody(look_at_process, &rank), "another user sees into rank 0");
	tool_end(&tool);
}

/* ---- members of two users ---- */

static struct heard {
	int told; /* lines at level warn or above that name both users */
	struct covey_error_info info;
	int err;
} * heard;

static void count_line(void *ctx, int level, const char *line)
{
	int *told = ctx;

	if (level <= COVEY_LOG_WARN && strstr(line, "as uid 0") && strstr(line, "uid 65534") &&
	    !strstr(line, "error: join"))
		__atomic_add_fetch(told, 1, __ATOMIC_RELAXED);
}

static int joins_in_vain(void *arg, int rank)
{
	struct covey_config config = *(const struct covey_config *)arg;
	struct covey_group *group;

	if (rank && (setgroups(0, NULL) || setgid(NOBODY) || setuid(NOBODY)))
		return 1;
	covey_log_set(count_line, &heard[rank].told, COVEY_LOG_WARN);
	config.rank = rank;
	heard[rank].err = covey_join(&config, &group);
	covey_last_error(NULL, &heard[rank].info);
	return 0;
}

/* Ranks @from and above join, again with more time until each is told @why: a busy machine is slow. */
static void join_until_told(struct covey_config *config, int from, const char *why)
{
	pid_t pid[RANKS];
	int told = 0;

	for (; told < RANKS - from && config->join_ms < WATCHDOG_MS; config->join_ms *= 4) {
		memset(heard, 0, RANKS * sizeof(*heard));
		for (int r = from; r < RANKS; r++)
			pid[r] = harness_fork(joins_in_vain, config, r);
		told = 0;
		for (int r = from; r < RANKS; r++) {
			must(harness_reap(pid[r]) == 0, "rank %d", r);
			told += strstr(heard[r].info.cause, why) != NULL;
		}
	}
	for (int r = from; r < RANKS; r++)
		must(heard[r].err < 0 && strstr(heard[r].info.cause, why), "rank %d: %d: %s", r, heard[r].err,
		     heard[r].info.cause);
}

/* The store's socket, which the test opens to everybody: while it is closed, and when it is open. */
TEST(a_member_of_another_user_is_told_why_and_once)
{
	struct covey_config config = harness_config("twousers", RANKS);
	char path[96], *slash;

	snprintf(path, sizeof(path), "%s", strstr(harness_store(), "://") + 3);
	heard = harness_shared(RANKS * sizeof(*heard));
	config.join_ms = 400;
	join_until_told(&config, 1, "as uid 65534");
	must(heard[1].err == COVEY_ERR_STORE, "nobody: %d: %s", heard[1].err, heard[1].info.cause);
	must(!chmod(path, 0777), "%s", path);
	slash = strrchr(path, '/');
	*slash = '\0';
	must(!chmod(path, 0711), "%s", path);
	config.join_ms = 7000; /* who waits to be dialled says so after 5 seconds */
	join_until_told(&config, 0, "one user");
	must(!chmod(path, 0700), "%s", path);
	for (int r = 0; r < RANKS; r++)
		must(heard[r].told == 1, "rank %d: %d lines say why", r, heard[r].told);
}

int main(void)
{
	if (geteuid()) {
		fprintf(stderr, "skipped: only root can become another user\n");
		return 77;
	}
	if (access(EP_RUN, X_OK))
		fprintf(stderr, "no ep-run in this build: its test is left out\n");
	return harness_main(SUITE(.name = "collectives/users"));
}
