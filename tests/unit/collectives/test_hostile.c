/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group of three processes at work, and somebody who calls their sockets: garbage, another version,
 * another group, a wrong incarnation, a wrong proof, floods, and silence; and a process that would join it
 * with another secret. The operations go on with right results in the one epoch they began with, and afterwards every member has
 * the descriptors and, but for a little, the memory that it had.
 *
 * labels: redis real
 */
#include "harness.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mesh.h"

#define RANKS 3
#define COUNT 3001
#define MORE 30		   /* operations that must go on after an attack */
#define GROWTH_KB 8192	   /* of memory, over all attacks: caches of the allocator, not connections */
#define LINES_PER_ATTACK 8 /* of the log, of one member: CVY_STRANGER_LINES in each period that the attack touches */
#define SCAN 1000
#define IMPOSTOR_MS 10000 /* that it tries to join */

struct shared {
	uint64_t at[RANKS], joined[RANKS], lines[RANKS], stop;
	uint32_t epoch[RANKS];
};

struct job {
	struct covey_config config;
	struct shared *shared;
	pid_t pid[RANKS];
	char addr[RANKS][320];
	uint64_t inc[RANKS];
	char gid[40];
	int fds[RANKS];
	long kb[RANKS];
	uint64_t lines[RANKS];
};

/* ---- a member ---- */

static void count_line(void *ctx, int level, const char *line)
{
	(void)level;
	(void)line;
	__atomic_add_fetch((uint64_t *)ctx, 1, __ATOMIC_RELAXED);
}

static int member_main(void *arg, int me)
{
	struct job *job = arg;
	struct shared *s = job->shared;
	static float send[COUNT], recv[COUNT], want[COUNT];
	struct covey_group *group;
	struct covey_result res;

	covey_log_set(count_line, &s->lines[me], COVEY_LOG_WARN);
	group = harness_join(&job->config, me);
	__atomic_store_n(&s->joined[me], 1, __ATOMIC_RELEASE);
	for (uint64_t seq = 1; seq <= __atomic_load_n(&s->stop, __ATOMIC_ACQUIRE); seq++) {
		type_input(send, COUNT, COVEY_FLOAT32, me, seq);
		must(!covey_allreduce(send, recv, COUNT, COVEY_FLOAT32, COVEY_SUM, group, NULL, &res), "rank %d", me);
		type_fold(want, COUNT, COVEY_FLOAT32, COVEY_SUM, 7, seq);
		must(res.mask.word[0] == 7 && !memcmp(recv, want, sizeof(want)), "rank %d operation %llu mask %llx", me,
		     (unsigned long long)seq, (unsigned long long)res.mask.word[0]);
		must(!s->epoch[me] || s->epoch[me] == res.epoch, "rank %d: epoch %u came", me, res.epoch);
		s->epoch[me] = res.epoch;
		__atomic_store_n(&s->at[me], seq, __ATOMIC_RELEASE);
	}
	must(!covey_leave(group, harness_deadline(WATCHDOG_MS)), "rank %d cannot leave", me);
	covey_close(group);
	return 0;
}

/* ---- what the world can see of it ---- */

static int descriptors(pid_t pid)
{
	char path[64];
	DIR *dir;
	int n = 0;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	dir = opendir(path);
	must(dir, "%s: %s", path, strerror(errno));
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static long memory_kb(pid_t pid)
{
	char path[64], line[256];
	long kb = -1;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	file = fopen(path, "r");
	must(file, "%s: %s", path, strerror(errno));
	while (kb < 0 && fgets(line, sizeof(line), file))
		if (sscanf(line, "RssAnon: %ld", &kb) == 1)
			break;
	fclose(file);
	return kb;
}

/* A field of the group in the store. */
static void store_field(const char *group, const char *field, char *value, size_t bytes)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	char text[2048], *at;
	ssize_t got;

	snprintf(to.sun_path, sizeof(to.sun_path), "%s", strstr(harness_store(), "://") + 3);
	must(!connect(fd, (struct sockaddr *)&to, sizeof(to)), "%s: %s", to.sun_path, strerror(errno));
	dprintf(fd, "HGET covey:{%s}:g %s\r\n", group, field);
	got = read(fd, text, sizeof(text) - 1);
	close(fd);
	must(got > 0 && text[0] == '$', "HGET %s", field);
	text[got] = 0;
	at = strchr(text, '\n');
	must(at, "HGET %s: %s", field, text);
	at[1 + strcspn(at + 1, "\r")] = 0;
	snprintf(value, bytes, "%s", at + 1);
}

static void job_start(struct job *job, const char *name, int transport)
{
	char field[8], value[1024];

	*job = (struct job){ .config = harness_config(name, RANKS), .shared = harness_shared(sizeof(*job->shared)) };
	job->config.transport = transport;
	job->shared->stop = UINT64_MAX;
	for (int r = 0; r < RANKS; r++)
		job->pid[r] = harness_fork(member_main, job, r);
	for (int r = 0; r < RANKS; r++)
		harness_until(&job->shared->at[r], MORE, "the first operations");
	store_field(job->config.group, "gid", job->gid, sizeof(job->gid));
	for (int r = 0; r < RANKS; r++) {
		unsigned long long inc;

		snprintf(field, sizeof(field), "m:%d", r);
		store_field(job->config.group, field, value, sizeof(value));
		must(sscanf(value, "%llu %*s %319s", &inc, job->addr[r]) == 2, "%s is %s", field, value);
		job->inc[r] = inc;
		job->fds[r] = descriptors(job->pid[r]);
		job->kb[r] = memory_kb(job->pid[r]);
	}
}

/* After an attack: the work goes on, and the descriptors come back. */
static void undisturbed(struct job *job, const char *attack)
{
	uint64_t end = harness_deadline(WATCHDOG_MS);

	for (int r = 0; r < RANKS; r++) {
		uint64_t lines = __atomic_load_n(&job->shared->lines[r], __ATOMIC_RELAXED);

		harness_until(&job->shared->at[r], __atomic_load_n(&job->shared->at[r], __ATOMIC_ACQUIRE) + MORE,
			      attack);
		while (descriptors(job->pid[r]) > job->fds[r])
			must(harness_now_ns() < end && !poll(NULL, 0, 20), "%s: rank %d keeps %d descriptors, had %d",
			     attack, r, descriptors(job->pid[r]), job->fds[r]);
		must(lines - job->lines[r] <= LINES_PER_ATTACK, "%s: rank %d wrote %llu lines", attack, r,
		     (unsigned long long)(lines - job->lines[r]));
		job->lines[r] = lines;
	}
}

static void job_end(struct job *job)
{
	uint64_t last = 0;

	for (int r = 0; r < RANKS; r++) {
		long kb = memory_kb(job->pid[r]);

		must(kb <= job->kb[r] + GROWTH_KB, "rank %d grew from %ld to %ld KiB", r, job->kb[r], kb);
		if (job->shared->at[r] > last)
			last = job->shared->at[r];
	}
	__atomic_store_n(&job->shared->stop, last + MORE, __ATOMIC_RELEASE);
	for (int r = 0; r < RANKS; r++)
		must(!harness_reap(job->pid[r]), "rank %d ended badly", r);
}

/* ---- the attacker ---- */

static int call(const struct job *job, int rank, int by_unix)
{
	const char *why = "";
	int fd = cvy_address_connect(job->addr[rank], by_unix ? CVY_BY_UNIX : 0, "", &why);
	struct pollfd p = { fd, POLLOUT, 0 };

	must(fd >= 0, "calling %s: %s", job->addr[rank], why);
	must(poll(&p, 1, WATCHDOG_MS) == 1, "calling %s hangs", job->addr[rank]);
	fcntl(fd, F_SETFL, 0);
	return fd;
}

static void say(int fd, const void *bytes, size_t n)
{
	if (send(fd, bytes, n, MSG_NOSIGNAL) < 0)
		return; /* it hung up already: as it should */
}

/* Until the member hangs up. */
static void await_end(int fd)
{
	char bytes[4096];
	struct pollfd p = { fd, POLLIN, 0 };

	for (;;) {
		must(poll(&p, 1, WATCHDOG_MS) == 1, "the member does not hang up");
		if (recv(fd, bytes, sizeof(bytes), 0) <= 0)
			break;
	}
	close(fd);
}

static struct cvy_wire head_of(const struct job *job, int type, size_t bytes)
{
	return (struct cvy_wire){ .magic = CVY_WIRE_MAGIC,
				  .version = CVY_WIRE_VERSION,
				  .type = (uint16_t)type,
				  .bytes = (uint32_t)bytes,
				  .src = 1,
				  .src_inc = job->inc[1],
				  .dst_inc = job->inc[0] };
}

/* HELLO of rank 1 to rank 0, as it is or changed. */
static struct cvy_hello hello_of(const struct job *job)
{
	struct cvy_hello hello = { .nonce = 5, .src = 1, .src_inc = job->inc[1], .dst_inc = job->inc[0] };

	memcpy(hello.gid, job->gid, strlen(job->gid));
	return hello;
}

static void say_hello(int fd, const struct job *job, const struct cvy_hello *hello)
{
	struct cvy_wire head = head_of(job, CVY_WIRE_HELLO, sizeof(*hello));

	say(fd, &head, sizeof(head));
	say(fd, hello, sizeof(*hello));
}

static void garbage(const struct job *job, int by_unix)
{
	uint8_t bytes[2048];

	for (int i = 0; i < 20; i++) {
		int fd = call(job, i % RANKS, by_unix);

		randombytes_buf(bytes, sizeof(bytes));
		say(fd, bytes, sizeof(bytes));
		await_end(fd);
	}
}

static void http(const struct job *job, int by_unix)
{
	static const char request[] = "GET / HTTP/1.1\r\nHost: covey\r\n\r\n";
	int fd = call(job, 0, by_unix);

	say(fd, request, sizeof(request) - 1);
	await_end(fd);
}

static void old_version(const struct job *job, int by_unix)
{
	struct cvy_wire head = head_of(job, CVY_WIRE_HELLO, sizeof(struct cvy_hello));
	int fd = call(job, 0, by_unix);

	head.version = 0;
	say(fd, &head, sizeof(head));
	await_end(fd);
}

static void huge_length(const struct job *job, int by_unix)
{
	struct cvy_wire head = head_of(job, CVY_WIRE_HELLO, UINT32_MAX);
	int fd = call(job, 0, by_unix);

	say(fd, &head, sizeof(head));
	await_end(fd);
}

static void another_group(const struct job *job, int by_unix)
{
	struct cvy_hello hello = hello_of(job);
	int fd = call(job, 0, by_unix);

	hello.gid[0] = hello.gid[0] == '0' ? '1' : '0';
	say_hello(fd, job, &hello);
	await_end(fd);
}

static void wrong_incarnation(const struct job *job, int by_unix)
{
	struct cvy_hello hello = hello_of(job);
	int fd = call(job, 0, by_unix);

	hello.dst_inc += 17;
	say_hello(fd, job, &hello);
	await_end(fd);
}

/* The true rank 1 is connected: who says that it is rank 1 is not even answered with a proof. */
static void wrong_proof(const struct job *job, int by_unix)
{
	struct cvy_wire head = head_of(job, CVY_WIRE_PROOF, crypto_auth_BYTES);
	struct cvy_hello hello = hello_of(job);
	uint8_t mac[crypto_auth_BYTES] = { 1 };
	int fd = call(job, 0, by_unix);

	say_hello(fd, job, &hello);
	say(fd, &head, sizeof(head));
	say(fd, mac, sizeof(mac));
	await_end(fd);
}

/*
 * Half a frame, half a message, a HELLO that may be expected soon, and one byte a second, which is no
 * progress: the bound is on the whole handshake, CVY_HANDSHAKE_MS.
 */
static void silence(const struct job *job, int by_unix)
{
	struct cvy_wire head = head_of(job, CVY_WIRE_HELLO, sizeof(struct cvy_hello));
	struct cvy_hello hello = hello_of(job);
	int half = call(job, 0, by_unix), most = call(job, 1, by_unix), parked = call(job, 0, by_unix);
	int slow = call(job, 0, by_unix), n = 0;
	struct pollfd p = { slow, POLLIN, 0 };

	say(half, &head, 11);
	say(most, &head, sizeof(head));
	say(most, &hello, 50);
	hello.src_inc += 17;
	say_hello(parked, job, &hello);
	while (n < (int)sizeof(head) && !poll(&p, 1, 1000))
		say(slow, (uint8_t *)&head + n++, 1);
	must(n < (int)sizeof(head), "a caller of one byte a second is still there after %d s", n);
	await_end(slow);
	await_end(half);
	await_end(most);
	await_end(parked);
}

/* Connections that say nothing: half of them close at once, the others are held until the end. */
static void scan(const struct job *job, int by_unix)
{
	static int fd[SCAN];

	for (int i = 0; i < SCAN; i++) {
		fd[i] = call(job, i % RANKS, by_unix);
		if (i % 2) {
			close(fd[i]);
			fd[i] = -1;
		}
	}
	for (int i = 0; i < SCAN; i++)
		if (fd[i] >= 0)
			await_end(fd[i]);
}

static const struct {
	const char *name;
	void (*run)(const struct job *job, int by_unix);
} attacks[] = {
	{ "garbage", garbage },
	{ "an HTTP request", http },
	{ "an old version", old_version },
	{ "a huge length", huge_length },
	{ "another group", another_group },
	{ "a wrong incarnation", wrong_incarnation },
	{ "a wrong proof", wrong_proof },
	{ "silence", silence },
	{ "a port scanner", scan },
};

static void attack_all(int transport, int by_unix)
{
	struct job job;

	job_start(&job, "hostile", transport);
	for (size_t i = 0; i < sizeof(attacks) / sizeof(attacks[0]); i++) {
		attacks[i].run(&job, by_unix);
		undisturbed(&job, attacks[i].name);
	}
	job_end(&job);
}

TEST(attacks_by_unix_disturb_no_group_on_shared_memory)
{
	attack_all(COVEY_TRANSPORT_SHM, 1);
}

TEST(attacks_by_tcp_disturb_no_group_over_tcp)
{
	attack_all(COVEY_TRANSPORT_TCP, 0);
}

/* ---- places that a scanner holds ---- */

static int joiner_main(void *arg, int me)
{
	struct job *job = arg;
	struct covey_config config = job->config;
	struct covey_group *group;

	config.create = COVEY_CREATE_NEVER;
	config.world = 0;
	config.admission = COVEY_ADMISSION_MANUAL;
	group = harness_join(&config, me);
	__atomic_store_n(&job->shared->joined[0], 2, __ATOMIC_RELEASE);
	covey_close(group);
	return 0;
}

/* Holds twice as many connections as a member keeps, and opens another one for each that is closed. */
static int scanner_main(void *arg, int unused)
{
	struct job *job = arg;
	struct pollfd p[RANKS * 2 * CVY_STRANGERS];
	int n = (int)(sizeof(p) / sizeof(p[0]));

	(void)unused;
	for (int i = 0; i < n; i++)
		p[i] = (struct pollfd){ call(job, i % RANKS, i / RANKS % 2), POLLIN, 0 };
	__atomic_store_n(&job->shared->joined[1], 2, __ATOMIC_RELEASE);
	while (poll(p, (nfds_t)n, -1) > 0) {
		for (int i = 0; i < n; i++) {
			if (!p[i].revents)
				continue;
			close(p[i].fd);
			p[i].fd = call(job, i % RANKS, i / RANKS % 2);
		}
	}
	return 1;
}

TEST(silent_callers_keep_no_joiner_out)
{
	struct job job;
	pid_t scanner, joiner;

	job_start(&job, "scanned", COVEY_TRANSPORT_AUTO);
	scanner = harness_fork(scanner_main, &job, 0);
	harness_until(&job.shared->joined[1], 2, "the scanner");
	joiner = harness_fork(joiner_main, &job, RANKS);
	harness_until(&job.shared->joined[0], 2, "the joiner");
	must(!harness_reap(joiner), "the joiner failed");
	kill(scanner, SIGKILL);
	harness_reap(scanner);
	undisturbed(&job, "a scanner that stays");
	job_end(&job);
}

/* ---- a wrong secret ---- */

static void write_file(const char *path, const char *text, unsigned int mode)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);

	must(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text), "%s: %s", path, strerror(errno));
	must(!fchmod(fd, mode), "%s: %s", path, strerror(errno));
	close(fd);
}

/* A process that may read the store, and so finds the group, but has another secret. */
static int impostor_main(void *arg, int me)
{
	struct job *job = arg;
	struct covey_config config = job->config;
	struct covey_group *group = NULL;
	struct covey_error_info info;
	int err;

	config.rank = me;
	config.create = COVEY_CREATE_NEVER;
	config.world = 0;
	config.admission = COVEY_ADMISSION_MANUAL;
	config.join_ms = IMPOSTOR_MS;
	err = covey_join(&config, &group);
	covey_last_error(NULL, &info);
	must(err == COVEY_ERR_TIMEOUT && strstr(info.cause, "secret"), "%s: %s", covey_strerror(err), info.cause);
	return 0;
}

TEST(who_has_another_secret_joins_no_group)
{
	char dir[] = "/tmp/covey-test-XXXXXX", right[64], wrong[64];
	struct job job;

	must(mkdtemp(dir), "%s", strerror(errno));
	snprintf(right, sizeof(right), "%s/right", dir);
	snprintf(wrong, sizeof(wrong), "%s/wrong", dir);
	write_file(right, "the secret of this group", 0600);
	write_file(wrong, "the secret of that group", 0600);
	setenv("COVEY_SECRET_FILE", right, 1);
	job_start(&job, "secret", COVEY_TRANSPORT_AUTO);
	setenv("COVEY_SECRET_FILE", wrong, 1);
	must(!harness_reap(harness_fork(impostor_main, &job, RANKS)), "the impostor failed otherwise");
	undisturbed(&job, "a wrong secret");
	setenv("COVEY_SECRET_FILE", right, 1);
	must(!harness_reap(harness_fork(joiner_main, &job, RANKS)), "who has the secret is kept out");
	undisturbed(&job, "a joiner");
	job_end(&job);
	unlink(right);
	unlink(wrong);
	rmdir(dir);
}

static void count_word(void *ctx, int level, const char *line)
{
	(void)level;
	*(int *)ctx += strstr(line, "open to every user") != NULL;
}

static int alone_main(void *arg, int mode)
{
	struct covey_config config = *(struct covey_config *)arg;
	struct covey_group *group;
	int said = 0;

	covey_log_set(count_word, &said, COVEY_LOG_WARN);
	group = harness_join(&config, 0);
	covey_log_set(NULL, NULL, COVEY_LOG_ERROR);
	covey_close(group);
	must(said == (mode == 0644), "mode %o: said %d times", (unsigned int)mode, said);
	return 0;
}

TEST(a_secret_that_everybody_can_read_is_said)
{
	static const int modes[] = { 0600, 0640, 0644 };
	char path[] = "/tmp/covey-test-XXXXXX";
	int fd = mkstemp(path);

	must(fd >= 0 && !close(fd), "%s", strerror(errno));
	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		struct covey_config config = harness_config("mode", 1);

		write_file(path, "the secret of this group", (unsigned int)modes[i]);
		config.secret_file = path;
		must(!harness_reap(harness_fork(alone_main, &config, modes[i])), "mode %o", (unsigned int)modes[i]);
	}
	unlink(path);
}

int main(void)
{
	if (sodium_init() < 0)
		return 77;
	return harness_main(SUITE(.name = "collectives/hostile"));
}
