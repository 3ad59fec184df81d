/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a member shows of itself: metrics at a socket, and the flight recorder's page.
 *
 * labels: redis tsan
 */
#include "harness.h"

#include <dirent.h>
#include <fcntl.h>
#include <locale.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "metrics.h"
#include "recorder.h"

#define RANKS 3
#define STEPS 20
#define COUNT 100

static char dir[64];

static void make_dir(void)
{
	snprintf(dir, sizeof(dir), "/tmp/covey-test-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(dir));
}

/* Nothing is left in it. */
static void remove_dir(void)
{
	ck_assert_int_eq(rmdir(dir), 0);
}

static int dial_unix(int rank)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(to.sun_path, sizeof(to.sun_path), "%s/m-%d", dir, rank);
	must(fd >= 0 && !connect(fd, (struct sockaddr *)&to, sizeof(to)), "no metrics at %s", to.sun_path);
	return fd;
}

/* The body of the answer, after a look at its header. */
static char *scrape(int fd, char *text, size_t room)
{
	static const char ask[] = "GET /metrics HTTP/1.0\r\n\r\n";
	struct pollfd wait = { .fd = fd, .events = POLLIN };
	size_t used = 0, length;
	ssize_t n;
	char *body;

	must(send(fd, ask, strlen(ask), MSG_NOSIGNAL) == (ssize_t)strlen(ask), "cannot ask");
	while (poll(&wait, 1, WATCHDOG_MS) == 1 && (n = read(fd, text + used, room - 1 - used)) > 0)
		used += (size_t)n;
	text[used] = '\0';
	close(fd);
	must(!strncmp(text, "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n", 56), "header: %.80s",
	     text);
	body = strstr(text, "Content-Length: ");
	must(body && sscanf(body, "Content-Length: %zu", &length) == 1, "no length");
	body = strstr(text, "\r\n\r\n");
	must(body && strlen(body + 4) == length, "the body is not %zu bytes", length);
	return body + 4;
}

static double value(const char *body, const char *name, const char *group, int rank, const char *kind)
{
	char line[256];
	const char *at;

	snprintf(line, sizeof(line), "\n%s{group=\"%s\",rank=\"%d\"%s%s%s} ", name, group, rank, kind ? ",kind=\"" : "",
		 kind ? kind : "", kind ? "\"" : "");
	at = strstr(body, line);
	must(at != NULL, "no line %s in:\n%s", line + 1, body);
	return strtod(at + strlen(line), NULL);
}

static void work(struct member *m)
{
	float in[COUNT] = { 1 }, out[COUNT];
	struct covey_result result;

	for (int i = 0; i < STEPS; i++)
		must(!covey_allreduce(in, out, COUNT, COVEY_FLOAT32, COVEY_SUM, m->group, NULL, &result), "allreduce");
	must(!covey_barrier(m->group, NULL, &result), "barrier");
	must(covey_allreduce(in, out, COUNT, 99, COVEY_SUM, m->group, NULL, &result) == COVEY_ERR_INVAL, "bad type");
}

static void look(const char *body, const struct member *m)
{
	const char *group = m->config.group;

#define HAS(name, type, help, number) must(strstr(body, "# TYPE " name " " type "\n") != NULL, "no " name);
	CVY_METRIC_LIST(HAS)
	CVY_METRIC_KIND_LIST(HAS)
#undef HAS
	must(value(body, "covey_members", group, m->rank, NULL) == m->n, "members");
	must(value(body, "covey_pending", group, m->rank, NULL) == 0, "pending");
	must(value(body, "covey_active", group, m->rank, NULL) == 1, "active");
	must(value(body, "covey_epoch", group, m->rank, NULL) == 1, "epoch");
	must(value(body, "covey_store_up", group, m->rank, NULL) == 1, "store");
	must(value(body, "covey_failed_operations_total", group, m->rank, NULL) == 0, "failed");
	must(value(body, "covey_operations_decided", group, m->rank, NULL) == STEPS + 1, "decided");
	must(value(body, "covey_operations_posted", group, m->rank, NULL) == STEPS + 1, "posted");
	must(value(body, "covey_operations_total", group, m->rank, "allreduce") == STEPS, "allreduce");
	must(value(body, "covey_operations_total", group, m->rank, "barrier") == 1, "barrier");
	must(value(body, "covey_operations_total", group, m->rank, "dispatch") == 0, "dispatch");
	must(value(body, "covey_operation_bytes_total", group, m->rank, "allreduce") == STEPS * COUNT * 4, "bytes");
}

static void over_unix(struct member *m)
{
	static char text[RANKS][65536];
	int idle[8];

	work(m);
	look(scrape(dial_unix(m->rank), text[m->rank], sizeof(text[0])), m);
	/* Who asks for nothing takes a place for a while only, and the group goes on meanwhile. */
	for (int i = 0; i < 8; i++)
		idle[i] = dial_unix(m->rank);
	must(!covey_barrier(m->group, NULL, NULL), "barrier");
	for (int i = 0; i < 8; i++)
		close(idle[i]);
	must(!covey_barrier(m->group, NULL, NULL), "barrier");
}

static void has_points(struct member *m)
{
	static char text[RANKS][65536];
	const char *at;

	work(m);
	at = strstr(scrape(dial_unix(m->rank), text[m->rank], sizeof(text[0])), "\ncovey_waited_seconds_total{");
	must(at != NULL, "nothing");
	at = strchr(at, '}');
	must(at[strcspn(at, ",\n")] == '\n', "%.30s", at);
	must(!covey_barrier(m->group, NULL, NULL), "barrier");
}

TEST(metrics_are_served_at_a_unix_socket)
{
	struct covey_config config = harness_config("metrics-unix", RANKS);
	char place[128];

	make_dir();
	snprintf(place, sizeof(place), "unix:%s/m-{rank}", dir);
	config.metrics = place;
	harness_threads(&config, over_unix, NULL);
	remove_dir();
}

/* That of the process writes 0,5. */
TEST(metrics_have_a_point_in_every_locale)
{
	struct covey_config config = harness_config("metrics-locale", RANKS);
	char place[128], command[256];

	make_dir();
	snprintf(command, sizeof(command), "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 2>&1", dir);
	if (!system(command) && !setenv("LOCPATH", dir, 1) && setlocale(LC_ALL, "de_DE.UTF-8")) {
		ck_assert_str_eq(localeconv()->decimal_point, ",");
		snprintf(place, sizeof(place), "unix:%s/m-{rank}", dir);
		config.metrics = place;
		harness_threads(&config, has_points, NULL);
	}
	snprintf(command, sizeof(command), "rm -r %s", dir);
	ck_assert_int_eq(system(command), 0);
}

TEST(metrics_take_the_socket_of_the_dead_and_leave_that_of_the_living)
{
	struct covey_config config = harness_config("metrics-left", RANKS);
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	char place[128];
	int left;

	make_dir();
	for (int rank = 0; rank < RANKS; rank++) {
		snprintf(at.sun_path, sizeof(at.sun_path), "%s/m-%d", dir, rank);
		left = socket(AF_UNIX, SOCK_STREAM, 0);
		ck_assert_int_eq(bind(left, (struct sockaddr *)&at, sizeof(at)), 0);
		close(left);
	}
	snprintf(place, sizeof(place), "unix:%s/m-{rank}", dir);
	config.metrics = place;
	harness_threads(&config, over_unix, NULL);
	remove_dir();
}

static void nothing_served(struct member *m)
{
	work(m); /* metrics that cannot be served stop nobody */
}

TEST(metrics_that_cannot_be_served_stop_nobody)
{
	struct covey_config config = harness_config("metrics-none", RANKS);

	config.metrics = "unix:/nonexistent/m-{rank}";
	harness_threads(&config, nothing_served, NULL);
	config = harness_config("metrics-bad", RANKS);
	config.metrics = "udp:9";
	ck_assert_int_eq(covey_join(&config, &(struct covey_group *){ NULL }), COVEY_ERR_INVAL);
}

static void over_tcp(struct member *m)
{
	static char text[RANKS][65536];
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), first = *(int *)m->arg;

	work(m);
	to.sin_port = htons((uint16_t)(first + m->rank));
	must(!connect(fd, (struct sockaddr *)&to, sizeof(to)), "no metrics at port %d", first + m->rank);
	look(scrape(fd, text[m->rank], sizeof(text[0])), m);
	must(!covey_barrier(m->group, NULL, NULL), "barrier");
}

/* The first of RANKS ports that are free now. */
static int free_ports(void)
{
	for (int first = 20000 + (int)getpid() % 20000; first < 60000; first += 7) {
		int free_here = 1;

		for (int i = 0; i < RANKS; i++) {
			struct sockaddr_in at = { .sin_family = AF_INET,
						  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
						  .sin_port = htons((uint16_t)(first + i)) };
			int fd = socket(AF_INET, SOCK_STREAM, 0);

			free_here &= !bind(fd, (struct sockaddr *)&at, sizeof(at));
			close(fd);
		}
		if (free_here)
			return first;
	}
	ck_abort_msg("no free ports");
	return 0;
}

/* The child of a fork, which may outlive its parent, holds no port of it. */
static void forks_over_tcp(struct member *m)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
				  .sin_port = htons((uint16_t)(*(const int *)m->arg + m->rank)) };
	int fd, held = 0, status;
	pid_t pid;

	must(!covey_barrier(m->group, NULL, NULL), "barrier");
	if (m->rank == 0) {
		pid = fork();
		if (!pid) { /* copies of its parent's sockets, by their numbers */
			for (fd = 3; fd < 1024; fd++) {
				struct sockaddr_in have;
				socklen_t bytes = sizeof(have);

				held |= !getsockname(fd, (struct sockaddr *)&have, &bytes) &&
					have.sin_family == AF_INET && have.sin_port == at.sin_port;
			}
			_exit(held);
		}
		must(pid > 0 && waitpid(pid, &status, 0) == pid && !status, "the child holds the port of metrics");
	}
	must(!covey_barrier(m->group, NULL, NULL), "barrier");
}

TEST(metrics_are_not_held_by_the_child_of_a_fork)
{
	struct covey_config config = harness_config("metrics-fork", RANKS);
	int first = free_ports();
	char place[64];

	snprintf(place, sizeof(place), "tcp:127.0.0.1:%d+", first);
	config.metrics = place;
	harness_threads(&config, forks_over_tcp, &first);
}

TEST(metrics_are_served_at_a_port_for_each_rank)
{
	struct covey_config config = harness_config("metrics-tcp", RANKS);
	int first = free_ports();
	char place[64];

	snprintf(place, sizeof(place), "tcp:127.0.0.1:%d+", first);
	config.metrics = place;
	harness_threads(&config, over_tcp, &first);
}

/* The page of this rank, from the files of a directory. */
static const struct cvy_flight *page_in(const char *from, const struct member *m)
{
	struct dirent *entry;
	DIR *d = opendir(from);
	char path[512];

	must(d != NULL, "cannot list %s", from);
	while ((entry = readdir(d))) {
		const struct cvy_flight *page;
		struct stat st;
		int fd;

		snprintf(path, sizeof(path), "%s/%s", from, entry->d_name);
		if (stat(path, &st) || st.st_size != (off_t)sizeof(*page))
			continue;
		fd = open(path, O_RDONLY | O_CLOEXEC);
		page = mmap(NULL, sizeof(*page), PROT_READ, MAP_SHARED, fd, 0);
		close(fd);
		if (page != MAP_FAILED && __atomic_load_n(&page->magic, __ATOMIC_ACQUIRE) == CVY_FLIGHT_MAGIC &&
		    !strcmp(page->group, m->config.group) &&
		    __atomic_load_n(&page->rank, __ATOMIC_ACQUIRE) == m->rank) {
			closedir(d);
			return page;
		}
	}
	closedir(d);
	return NULL;
}

static void recorded(struct member *m)
{
	const struct cvy_flight *page;

	work(m);
	page = page_in(m->arg ? m->arg : "/proc/self/fd", m);
	must(page != NULL, "no record of rank %d", m->rank);
	must(__atomic_load_n(&page->decided, __ATOMIC_RELAXED) == STEPS + 1, "decided");
	for (uint64_t seq = 1; seq <= STEPS + 1; seq++) {
		const struct cvy_flight_op *op = &page->op[seq % CVY_FLIGHT_OPS];

		must(op->seq == seq && op->state == CVY_FLIGHT_DECIDED && !op->status && op->epoch == 1, "operation");
		must(!strcmp(page->kind[op->kind], seq <= STEPS ? "allreduce" : "barrier"), "kind %s",
		     page->kind[op->kind]);
		must(op->bytes == (seq <= STEPS ? COUNT * 4 : 0), "bytes");
	}
	/* One that cannot end before the others come is seen under way. */
	if (m->rank == 0) {
		struct covey_work *barrier;

		must(!covey_barrier_start(m->group, NULL, &barrier), "start");
		must(page->op[(STEPS + 2) % CVY_FLIGHT_OPS].seq == STEPS + 2, "not recorded when it was called");
		must(!covey_work_wait(barrier, 0, NULL), "wait");
		covey_work_free(barrier);
	} else {
		must(!covey_barrier(m->group, NULL, NULL), "barrier");
	}
	must(!covey_barrier(m->group, NULL, NULL), "barrier"); /* all have looked before anyone goes */
	munmap((void *)page, sizeof(*page));
}

TEST(flight_is_found_in_the_process)
{
	struct covey_config config = harness_config("flight-mem", RANKS);

	harness_threads(&config, recorded, NULL);
}

TEST(flight_is_found_in_a_directory)
{
	struct covey_config config = harness_config("flight-file", RANKS);

	make_dir();
	config.flight = dir;
	harness_threads(&config, recorded, dir);
	remove_dir();
}

TEST(flight_that_cannot_be_written_stops_nobody)
{
	struct covey_config config = harness_config("flight-none", RANKS);

	config.flight = "/nonexistent";
	harness_threads(&config, nothing_served, NULL);
}

/* A process with the number 1, as in a container, that keeps a record until @end is closed, and then closes it. */
struct container {
	pid_t pid;
	int told, end; /* at the end of the process @told has an end of file */
};

static const char *no_name(unsigned kind)
{
	(void)kind;
	return NULL;
}

static void contain(const struct cvy_config *config, int told, int end)
{
	pid_t pid = unshare(CLONE_NEWPID) ? -1 : fork();
	struct cvy_recorder *r;
	char ok;

	if (pid) {
		ok = write(told, &pid, sizeof(pid)) == sizeof(pid);
		_exit(!ok);
	}
	if (read(end, &ok, 1) != 1) /* the number was told first */
		_exit(1);
	r = cvy_recorder_open(config, "host", no_name);
	ok = r && cvy_recorder_page(r)->pid == 1;
	if (write(told, &ok, 1) == 1 && !read(end, &ok, 1))
		cvy_recorder_close(r);
	_exit(0);
}

static struct container container_open(const struct cvy_config *config)
{
	int told[2], end[2];
	struct container c;
	char ok = 0;
	pid_t pid;

	ck_assert(!pipe2(told, O_CLOEXEC) && !pipe2(end, O_CLOEXEC));
	pid = fork();
	if (!pid) {
		close(end[1]);
		contain(config, told[1], end[0]);
	}
	close(told[1]);
	close(end[0]);
	ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
	ck_assert_int_eq(read(told[0], &c.pid, sizeof(c.pid)), sizeof(c.pid));
	c.told = told[0];
	c.end = end[1];
	if (c.pid > 0)
		ck_assert(write(c.end, "", 1) == 1 && read(c.told, &ok, 1) == 1 && ok);
	return c;
}

static void container_close(struct container *c, int killed)
{
	char byte;

	if (killed)
		kill(c->pid, SIGKILL);
	close(c->end);
	ck_assert_int_eq(read(c->told, &byte, 1), 0);
	close(c->told);
}

/* Files of the directory; all are removed if @clear. */
static int count_files(int clear)
{
	struct dirent *entry;
	DIR *d = opendir(dir);
	char path[400];
	int count = 0;

	while ((entry = readdir(d))) {
		snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
		count += entry->d_name[0] != '.';
		if (clear && entry->d_name[0] != '.')
			unlink(path);
	}
	closedir(d);
	return count;
}

TEST(flight_of_containers_with_one_directory_is_of_each)
{
	const struct cvy_config config = { .flight = dir, .group = (char[]){ "g" } };
	struct container one, two;

	make_dir();
	one = container_open(&config);
	if (one.pid > 0) { /* root alone may make a namespace */
		two = container_open(&config);
		ck_assert_int_eq(count_files(0), 2);
		container_close(&two, 0);
		ck_assert_int_eq(count_files(0), 1);
		container_close(&one, 1);
		/* The container starts again: the record of the dead stays. */
		one = container_open(&config);
		ck_assert_int_eq(count_files(0), 2);
		container_close(&one, 0);
		ck_assert_int_eq(count_files(1), 1);
	}
	remove_dir();
}

/* A file that has taken the place of ours is not ours. */
TEST(flight_of_another_is_not_removed)
{
	const struct cvy_config config = { .flight = dir, .group = (char[]){ "g" } };
	struct cvy_recorder *r;

	make_dir();
	r = cvy_recorder_open(&config, "host", no_name);
	ck_assert_ptr_nonnull(r);
	{
		struct dirent *entry;
		char path[400] = "", other[400];
		DIR *d = opendir(dir);
		int fd;

		while ((entry = readdir(d)))
			if (entry->d_name[0] != '.')
				snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
		closedir(d);
		snprintf(other, sizeof(other), "%s/other", dir);
		fd = open(other, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
		ck_assert(fd >= 0 && !rename(other, path));
		close(fd);
	}
	cvy_recorder_close(r);
	ck_assert_int_eq(count_files(1), 1);
	remove_dir();
}

/* A metric that has this name; the first number of a beat is a time, without a name. */
static int is_metric(const char *wanted)
{
	static const char *const names[] = {
#define NAME(name, type, help, number) name,
		CVY_METRIC_LIST(NAME) CVY_METRIC_KIND_LIST(NAME)
#undef NAME
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (!strcmp(names[i], wanted))
			return 1;
	return !*wanted;
}

TEST(beat_tells_metrics_as_whole_numbers)
{
	struct cvy_flight *page = aligned_alloc(64, sizeof(*page));
	char text[CVY_BEAT_TEXT];

	memset(page, 0, sizeof(*page));
	page->clock_ns = 1999999;
	page->epoch = 7;
	page->posted = 12;
	page->failed = 3;
	page->waited_ns = 2500000;
	page->count[0] = 4;
	page->count[CVY_FLIGHT_KINDS - 1] = 5;
	page->bytes[1] = 4096;
	page->awaited = -1;
	cvy_metrics_beat(page, text);
	ck_assert_str_eq(text, ",1,7,12,3,2500,9,4096,-1,0");
#define FITS(field, metric, parts, value) ck_assert_msg(is_metric(metric), "%s is no metric", metric);
	CVY_BEAT_LIST(FITS)
#undef FITS
	/* The longest numbers have room, so that none is cut into another. */
	memset(page, 0xff, sizeof(*page));
	cvy_metrics_beat(page, text);
	ck_assert_str_eq(strrchr(text, ','), ",18446744073709551");
	free(page);
}

HARNESS_MAIN(.name = "collectives/metrics")
