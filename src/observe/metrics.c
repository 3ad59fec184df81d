/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A server with one answer. Nobody can hold up the agent with it: sockets do not block; a client has one read and one
 * write and is closed after them or after ASK_MS; and there are at most ASKERS at a time.
 */
#include "metrics.h"

#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <netdb.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "clock.h"
#include "log.h"
#include "recorder.h"

#define ASKERS 4
#define ASK_MS 1000

struct asker {
	struct cvy_metrics *metrics;
	int fd; /* -1: free */
	struct cvy_watch *watch;
	struct cvy_timer *bound;
};

struct cvy_metrics {
	struct cvy_loop *loop;
	const struct cvy_flight *page;
	char *place, group[72];
	char path[108];	 /* of the unix socket, removed at the end */
	struct stat own; /* of that file */
	int fd;		 /* -1: not served yet */
	struct cvy_watch *watch;
	struct asker asker[ASKERS];
};

/* ---- the answer ---- */

/* A label's value: quotes, backslashes and newlines need an escape. */
static void label(FILE *to, const char *name, const char *value)
{
	fprintf(to, "%s=\"", name);
	for (; *value; value++) {
		if (*value == '\n')
			fputs("\\n", to);
		else if (*value == '"' || *value == '\\')
			fprintf(to, "\\%c", *value);
		else
			fputc(*value, to);
	}
	fputc('"', to);
}

static void sample(FILE *to, const struct cvy_flight *f, const char *name, const char *kind, double value)
{
	char rank[16];

	snprintf(rank, sizeof(rank), "%d", f->rank);
	fprintf(to, "%s{", name);
	label(to, "group", f->group);
	fputc(',', to);
	label(to, "rank", rank);
	if (kind) {
		fputc(',', to);
		label(to, "kind", kind);
	}
	fprintf(to, "} %.17g\n", value);
}

static void head(FILE *to, const char *name, const char *type, const char *help)
{
	fprintf(to, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* Each single number is consistent; the numbers may be of different moments. */
static struct cvy_flight *snapshot(const struct cvy_flight *page)
{
	size_t bytes = offsetof(struct cvy_flight, op);
	struct cvy_flight *copy =
		aligned_alloc(64, sizeof(*copy)); /* a whole page, of which only the numbers are filled in */

	for (size_t i = 0; copy && i < bytes / sizeof(uint64_t); i++)
		((uint64_t *)copy)[i] = __atomic_load_n((const uint64_t *)page + i, __ATOMIC_RELAXED);
	return copy;
}

void cvy_metrics_print(const struct cvy_flight *page, FILE *to)
{
	struct cvy_flight *f = snapshot(page);
	locale_t plain = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0), had;

	if (!f || !plain)
		goto out;
	had = uselocale(plain); /* that of the process may have a decimal comma */
#define ONE(name, type, help, value) \
	head(to, name, type, help); \
	sample(to, f, name, NULL, (double)(value));
	CVY_METRIC_LIST(ONE)
#undef ONE
#define EACH_KIND(name, type, help, value) \
	head(to, name, type, help); \
	for (int k = 0; k < CVY_FLIGHT_KINDS; k++) \
		if (f->kind[k][0]) \
			sample(to, f, name, f->kind[k], (double)(value));
	CVY_METRIC_KIND_LIST(EACH_KIND)
#undef EACH_KIND
	uselocale(had);
out:
	if (plain)
		freelocale(plain);
	free(f);
}

void cvy_metrics_beat(const struct cvy_flight *page, char text[CVY_BEAT_TEXT])
{
	struct cvy_flight *f = snapshot(page);
	size_t n = 0;

	text[0] = '\0';
	if (!f)
		return;
#define NUMBER(field, metric, parts, value) \
	n += (size_t)snprintf(text + n, CVY_BEAT_TEXT - n, ",%" PRId64, (int64_t)(value));
	CVY_BEAT_LIST(NUMBER)
#undef NUMBER
	free(f);
}

void cvy_metrics_manual(FILE *file)
{
	fputs("| metric | type | meaning |\n|---|---|---|\n", file);
#define ROW(name, type, help, value) fputs("| `" name "` | " type " | " help " |\n", file);
	CVY_METRIC_LIST(ROW)
#undef ROW
#define ROW(name, type, help, value) fputs("| `" name "` | " type ", by `kind` | " help " |\n", file);
	CVY_METRIC_KIND_LIST(ROW)
#undef ROW
}

/* ---- clients ---- */

static void dismiss(struct asker *a)
{
	cvy_loop_unwatch(a->watch);
	cvy_loop_cancel(a->bound);
	if (a->fd >= 0)
		close(a->fd);
	a->watch = NULL;
	a->bound = NULL;
	a->fd = -1;
}

static void bound_fire(void *ctx)
{
	struct asker *a = ctx;

	a->bound = NULL;
	dismiss(a);
}

static void reply(const struct asker *a)
{
	char *body = NULL, *text = NULL;
	size_t bytes = 0, all = 0;
	FILE *to = open_memstream(&body, &bytes);

	if (!to)
		return;
	cvy_metrics_print(a->metrics->page, to);
	fclose(to);
	to = body ? open_memstream(&text, &all) : NULL;
	if (to) {
		fprintf(to,
			"HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: %zu\r\n"
			"Connection: close\r\n\r\n",
			bytes);
		fwrite(body, 1, bytes, to);
		fclose(to);
		/* It fits an empty socket's buffer; a client with a smaller one gets less than Content-Length. */
		(void)!send(a->fd, text, all, MSG_DONTWAIT | MSG_NOSIGNAL);
	}
	free(text);
	free(body);
}

/* The answer is the same for every request. */
static void on_request(void *ctx, uint32_t events)
{
	struct asker *a = ctx;
	char request[4096];
	ssize_t n = recv(a->fd, request, sizeof(request), MSG_DONTWAIT);

	(void)events;
	if (n < 0 && errno == EAGAIN)
		return;
	if (n > 0) {
		reply(a);
		shutdown(a->fd, SHUT_WR);
	}
	dismiss(a);
}

static void on_asker(void *ctx, uint32_t events)
{
	struct cvy_metrics *m = ctx;
	int fd = accept4(m->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

	(void)events;
	for (int i = 0; fd >= 0 && i < ASKERS; i++) {
		struct asker *a = &m->asker[i];

		if (a->fd >= 0)
			continue;
		a->fd = fd;
		fd = -1;
		a->bound = cvy_loop_timer(m->loop, cvy_now_ns() + (uint64_t)ASK_MS * CVY_MS, bound_fire, a);
		if (!a->bound || cvy_loop_watch(m->loop, a->fd, EPOLLIN, on_request, a, &a->watch))
			dismiss(a);
	}
	if (fd >= 0)
		close(fd); /* too many: the client must try again */
}

/* ---- addresses ---- */

/* PATH with {rank}, {pid} and {group} filled in; -1: too long. */
static int fill_path(struct cvy_metrics *m, const char *place, int rank, char *to, size_t room)
{
	size_t n = 0;

	while (*place && n < room) {
		const char *end = strchr(place, '}');

		if (!strncmp(place, "{rank}", 6))
			n += (size_t)snprintf(to + n, room - n, "%d", rank);
		else if (!strncmp(place, "{pid}", 5))
			n += (size_t)snprintf(to + n, room - n, "%d", (int)getpid());
		else if (!strncmp(place, "{group}", 7))
			n += (size_t)snprintf(to + n, room - n, "%s", m->group);
		else {
			to[n++] = *place++;
			continue;
		}
		place = end + 1;
	}
	if (n >= room)
		return -1;
	to[n] = '\0';
	return 0;
}

/* A socket that a dead process left is replaced; one that a live process serves is not. */
static int take_path(int fd, const struct sockaddr_un *at)
{
	struct stat st;
	int probe;

	if (!bind(fd, (const struct sockaddr *)at, sizeof(*at)))
		return 0;
	if (errno != EADDRINUSE || lstat(at->sun_path, &st) || !S_ISSOCK(st.st_mode))
		return -1;
	probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (probe < 0)
		return -1;
	if (!connect(probe, (const struct sockaddr *)at, sizeof(*at)) || errno != ECONNREFUSED) {
		close(probe);
		errno = EADDRINUSE;
		return -1;
	}
	close(probe);
	cvy_unlink_own(at->sun_path, &st);
	return bind(fd, (const struct sockaddr *)at, sizeof(*at));
}

static int listen_unix(struct cvy_metrics *m, const char *place, int rank)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	int fd;

	if (fill_path(m, place, rank, at.sun_path, sizeof(at.sun_path))) {
		errno = ENAMETOOLONG;
		return -1;
	}
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -1;
	if (take_path(fd, &at)) {
		close(fd);
		return -1;
	}
	if (!lstat(at.sun_path, &m->own))
		memcpy(m->path, at.sun_path, sizeof(m->path));
	return fd;
}

/* [HOST:]PORT[+]: numbers only, because a name could hold up the agent. */
static int listen_tcp(const char *place, int rank)
{
	const struct addrinfo hints = { .ai_socktype = SOCK_STREAM,
					.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE };
	struct addrinfo *list = NULL;
	const char *colon = strrchr(place, ':');
	char host[64] = "127.0.0.1", port[16], *end;
	long number = strtol(colon ? colon + 1 : place, &end, 10);
	int fd = -1, one = 1;

	if (colon)
		snprintf(host, sizeof(host), "%.*s", (int)(colon - place), place);
	if (host[0] == '[' && host[strlen(host) - 1] == ']') {
		host[strlen(host) - 1] = '\0';
		memmove(host, host + 1, strlen(host));
	}
	if (!strcmp(end, "+"))
		number += rank;
	snprintf(port, sizeof(port), "%ld", number);
	errno = EINVAL;
	if ((*end && strcmp(end, "+")) || number < 1 || number > 65535 || getaddrinfo(host, port, &hints, &list))
		return -1;
	fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd >= 0) {
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		if (bind(fd, list->ai_addr, list->ai_addrlen)) {
			close(fd);
			fd = -1;
		}
	}
	freeaddrinfo(list);
	return fd;
}

void cvy_metrics_serve(struct cvy_metrics *m, int rank)
{
	if (!m || m->fd >= 0)
		return;
	m->fd = !strncmp(m->place, "unix:", 5) ? listen_unix(m, m->place + 5, rank) : listen_tcp(m->place + 4, rank);
	if (m->fd < 0 || listen(m->fd, ASKERS) || cvy_loop_watch(m->loop, m->fd, EPOLLIN, on_asker, m, &m->watch))
		cvy_warn("metrics", "cannot serve them at %s: %s", m->place, strerror(errno));
}

int cvy_metrics_open(const struct cvy_config *config, struct cvy_loop *loop, const struct cvy_flight *page,
		     struct cvy_metrics **out)
{
	struct cvy_metrics *m;

	*out = NULL;
	if (!*config->metrics || !page)
		return 0;
	m = calloc(1, sizeof(*m));
	if (!m || !(m->place = strdup(config->metrics))) {
		free(m);
		return COVEY_ERR_NOMEM;
	}
	m->loop = loop;
	m->page = page;
	m->fd = -1;
	snprintf(m->group, sizeof(m->group), "%s", config->group);
	for (int i = 0; i < ASKERS; i++) {
		m->asker[i].metrics = m;
		m->asker[i].fd = -1;
	}
	*out = m;
	return 0;
}

void cvy_metrics_forget(struct cvy_metrics *m)
{
	for (int i = 0; m && i < ASKERS; i++)
		if (m->asker[i].fd >= 0)
			close(m->asker[i].fd);
	if (m && m->fd >= 0)
		close(m->fd);
}

void cvy_metrics_close(struct cvy_metrics *m)
{
	if (!m)
		return;
	for (int i = 0; i < ASKERS; i++)
		dismiss(&m->asker[i]);
	cvy_loop_unwatch(m->watch);
	if (m->fd >= 0)
		close(m->fd);
	if (m->path[0])
		cvy_unlink_own(m->path, &m->own);
	free(m->place);
	free(m);
}
