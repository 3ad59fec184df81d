/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent of a group: one thread that runs the loop, beats, looks for signs of life and feeds the driver. Every
 * occurrence becomes an event on this thread, in the order of posting; events of other threads are copied first. The
 * thread holds the robust word of its page until it ends. Its end, for any reason, is the proof of death that peers
 * see.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "detect.h"
#include "driver.h"
#include "guard.h"
#include "log.h"
#include "ping.h"
#include "proc.h"
#include "process.h"
#include "slice.h"

#define STORE_CALL_MS 200
#define TICK_BUSY_MS 1		 /* while an operation waits or a change is under way */
#define TICK_LATE_MS 2		 /* while a peer's beat is late */
#define IDLE_MS 1000		 /* time without an operation after which beats come ... */
#define IDLE_TIMES 4		 /* ... this many times slower, so that an idle group costs little */
#define LOOK_MIN_NS (CVY_MS / 2) /* least time between looks: a flood of events must not become one of looks */
#define SECRET_MIN 16		 /* bytes of a secret file */
#define SECRET_MAX 65536

struct cvy_agent {
	struct cvy_event_queue queue; /* of other threads */
	int unposted;		      /* some wait for the tick, since there was no memory to wake the loop */
	struct cvy_loop *loop;
	struct cvy_agent_args args;
	struct cvy_driver driver;
	struct cvy_detect *detect;
	struct cvy_ping *ping;
	struct cvy_store *store;
	pthread_t thread;
	sem_t ready; /* posted when `life_err` is known */
	int life_err;
	int has_driver, has_thread;
	int watch_dirty; /* view or links changed: choose again the peers to monitor */
	unsigned views;	 /* of the driver, as they were then */
	int tick_ms;
	uint64_t look_ns;	/* time of the last look */
	uint64_t done, done_ns; /* last operation decided here, and the time at which it was */
};

/* The agent whose thread this is. */
static _Thread_local struct cvy_agent *current;

/* ---- Events ---------------------------------------------------------------------------------- */

/* A refused request is answered here: the driver of an ended group does nothing more. */
static void answer_ended(struct cvy_agent *agent, const struct cvy_event *event)
{
	int err = agent->driver.ended;

	if (event->id)
		agent->args.observer.answer(agent->args.observer.ctx, event->id, err, covey_strerror(err));
}

static void handle(struct cvy_agent *agent, const struct cvy_event *event)
{
	switch (event->kind) {
	case CVY_EV_LINK_UP:
	case CVY_EV_LINK_DOWN:
		cvy_ping_link(agent->ping, event->rank, event->inc, event->kind == CVY_EV_LINK_UP);
		agent->watch_dirty = 1;
		break;
	case CVY_EV_MSG:
		cvy_ping_heard(agent->ping, event->msg.rank, event->msg.inc);
		break;
	case CVY_EV_API:
		if (agent->driver.ended) {
			answer_ended(agent, event);
			return;
		}
		break;
	default:
		break;
	}
	cvy_driver_post(&agent->driver, event, cvy_now_ns());
}

/* Agent's thread. 0: no event of another thread waits. */
static int handle_first(struct cvy_agent *agent)
{
	struct cvy_event_item *item = cvy_event_queue_pop(&agent->queue);

	if (!item)
		return 0;
	handle(agent, &item->event);
	cvy_event_queue_give_back(&agent->queue, item);
	return 1;
}

static void handle_posted(void *ctx, void *arg)
{
	(void)arg;
	handle_first(ctx);
}

static int post_copy(struct cvy_agent *agent, const struct cvy_event *event)
{
	int err = cvy_event_queue_push(&agent->queue, event, 0);

	if (err)
		return err;
	err = cvy_loop_post(agent->loop, handle_posted, agent, NULL);
	if (err != COVEY_ERR_NOMEM)
		return err;
	__atomic_store_n(&agent->unposted, 1, __ATOMIC_RELEASE);
	return 0;
}

static void post(void *ctx, const struct cvy_event *event)
{
	struct cvy_agent *agent = ctx;
	int err = 0;

	if (current == agent)
		handle(agent, event);
	else
		err = post_copy(agent, event);
	if (err == COVEY_ERR_NOMEM)
		cvy_error("membership", "no memory for event %d of rank %d", event->kind, event->rank);
}

struct cvy_sink cvy_agent_sink(struct cvy_agent *agent)
{
	return (struct cvy_sink){ .post = post, .ctx = agent };
}

int cvy_agent_ask(struct cvy_agent *agent, int api, uint64_t id, int rank, uint64_t number,
		  const struct covey_mask *ranks)
{
	struct cvy_event event = { .kind = CVY_EV_API, .api = api, .id = id, .rank = rank, .number = number };

	int err;

	if (ranks)
		event.ranks = *ranks;
	err = post_copy(agent, &event);
	if (err == COVEY_ERR_NOMEM)
		cvy_fail(agent->args.box, err, rank, 0, "no memory for a request");
	return err;
}

/* ---- The store, agent's thread ------------------------------------------------------------------ */

static void store_reply(void *ctx, uint64_t id, int err, int argc, const char *const *argv, const char *cause)
{
	const struct cvy_event event = {
		.kind = CVY_EV_REPLY, .rank = -1, .id = id, .err = err, .argc = argc, .argv = argv, .text = cause
	};

	post(ctx, &event);
}

static void store_notice(void *ctx, const char *text)
{
	const struct cvy_event event = { .kind = CVY_EV_NOTICE, .rank = -1, .text = text };

	post(ctx, &event);
}

static void store_up(void *ctx)
{
	const struct cvy_event event = { .kind = CVY_EV_STORE_UP, .rank = -1 };

	post(ctx, &event);
}

static void store_down(void *ctx, int err, const char *cause)
{
	const struct cvy_event event = { .kind = CVY_EV_STORE_DOWN, .rank = -1, .err = err, .text = cause };

	post(ctx, &event);
}

/* ---- Ticks ------------------------------------------------------------------------------------- */

static void look_for_life(struct cvy_agent *agent, uint64_t now_ns)
{
	const struct cvy_view *view = cvy_group_view(agent->driver.group);

	if (!CVY_GUARDED || agent->driver.ended || !view)
		return;
	if (agent->watch_dirty || agent->views != agent->driver.views) {
		/* before the calls below, which may lead to the next view */
		agent->watch_dirty = 0;
		agent->views = agent->driver.views;
		cvy_ping_view(agent->ping, view, cvy_group_rank(agent->driver.group));
		if (cvy_detect_view(agent->detect, view, cvy_group_rank(agent->driver.group)))
			agent->watch_dirty = 1; /* not all are watched: try again at the next look */
	}
	if (now_ns - agent->look_ns < LOOK_MIN_NS)
		return;
	agent->look_ns = now_ns;
	cvy_detect_tick(agent->detect, now_ns);
	cvy_ping_tick(agent->ping, now_ns);
}

static int change_under_way(const struct cvy_agent *agent)
{
	int phase = cvy_group_phase(agent->driver.group);

	return phase == CVY_PHASE_FREEZING || phase == CVY_PHASE_FROZEN || phase == CVY_PHASE_LEARNED ||
	       phase == CVY_PHASE_ACKED;
}

static int next_tick_ms(struct cvy_agent *agent, uint64_t now_ns)
{
	const struct cvy_seam *seam = agent->args.seam;
	int ms = agent->args.config->heartbeat_ms, waiting = 0;
	uint64_t done, timer;

	if (agent->driver.ended)
		return ms;
	done = seam->progress(seam->ctx, &waiting);
	if (done != agent->done || waiting) {
		agent->done = done;
		agent->done_ns = now_ns;
	}
	if (waiting || change_under_way(agent))
		ms = TICK_BUSY_MS;
	else if (now_ns - agent->done_ns > IDLE_MS * CVY_MS)
		ms *= IDLE_TIMES;
	if (cvy_detect_late(agent->detect) && ms > TICK_LATE_MS)
		ms = TICK_LATE_MS;
	timer = cvy_driver_timer(&agent->driver);
	if (timer < now_ns + (uint64_t)ms * CVY_MS)
		ms = timer <= now_ns + CVY_MS ? 1 : (int)((timer - now_ns + CVY_MS - 1) / CVY_MS);
	return ms;
}

static void tick(void *ctx, uint64_t now_ns)
{
	const struct cvy_event time_passed = { .kind = CVY_EV_TICK, .rank = -1 };
	struct cvy_agent *agent = ctx;
	uint64_t *beat = &agent->args.own_page->beat;

	__atomic_store_n(beat, *beat + 1, __ATOMIC_RELAXED);
	if (__atomic_exchange_n(&agent->unposted, 0, __ATOMIC_ACQ_REL))
		while (handle_first(agent))
			;
	look_for_life(agent, now_ns);
	if (!agent->driver.ended && now_ns >= cvy_driver_timer(&agent->driver))
		cvy_driver_post(&agent->driver, &time_passed, now_ns);
	agent->tick_ms = next_tick_ms(agent, now_ns);
	__atomic_store_n(&agent->args.own_page->beat_ms, (uint32_t)agent->tick_ms, __ATOMIC_RELAXED);
}

/* ---- Life ---------------------------------------------------------------------------------------- */

static void *run(void *arg)
{
	struct cvy_event join = { .kind = CVY_EV_API, .api = CVY_API_JOIN, .rank = -1 };
	struct cvy_agent *agent = arg;
	int err = cvy_life_take(agent->args.own_page);
	char word[CVY_PROC_WORD];

	/* By the thread itself: to name another one, glibc opens a file that a program started meanwhile is given. */
	pthread_setname_np(pthread_self(), "covey-agent");
	cvy_proc_word(word, sizeof(word));
	join.text = word;
	cvy_slice_short();
	current = agent;
	agent->life_err = err;
	sem_post(&agent->ready);
	if (err)
		return NULL;
	handle(agent, &join);
	cvy_loop_run(agent->loop, tick, agent, &agent->tick_ms);
	agent->store->ops->close(agent->store);
	agent->store = agent->driver.store = NULL;
	return NULL;
}

static int start_thread(struct cvy_agent *agent)
{
	int err = cvy_thread_start(&agent->thread, run, agent);
	char why[CVY_HINT];

	if (err)
		return cvy_fail(agent->args.box, COVEY_ERR_IO, -1, 0, "cannot start the agent's thread: %s%s",
				strerror(err), cvy_process_hint(err, why, sizeof(why)));
	agent->has_thread = 1;
	while (sem_wait(&agent->ready) && errno == EINTR)
		;
	if (agent->life_err)
		return cvy_fail(agent->args.box, agent->life_err, -1, 0, "cannot take the robust word of the own page");
	return 0;
}

/* Only a warning: on a machine with one user the mode may be intended. */
static void look_at_mode(int fd, const char *path)
{
	struct stat st;

	if (!fstat(fd, &st) && st.st_mode & S_IRWXO)
		cvy_warn("membership", "secret_file \"%.100s\" is open to every user of this host: mode %03o", path,
			 (unsigned int)st.st_mode & 0777);
}

/* The group's key is the hash of a file of any format. */
static int read_secret(const struct cvy_agent *agent, uint8_t secret[32])
{
	const char *path = agent->args.config->secret_file;
	uint8_t *bytes = malloc(SECRET_MAX);
	int fd = bytes ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	ssize_t n = fd >= 0 ? read(fd, bytes, SECRET_MAX) : -1;
	int err = 0;

	if (!bytes)
		err = cvy_fail(agent->args.box, COVEY_ERR_NOMEM, -1, 0, "no memory for the secret");
	else if (n < 0)
		err = cvy_fail(agent->args.box, COVEY_ERR_INVAL, -1, 0, "secret_file \"%.100s\" cannot be read: %s",
			       path, strerror(errno));
	else if (n < SECRET_MIN)
		err = cvy_fail(agent->args.box, COVEY_ERR_INVAL, -1, 0,
			       "secret_file \"%.100s\" holds %zd bytes: it must be at least %d", path, n, SECRET_MIN);
	else
		crypto_generichash(secret, 32, bytes, (size_t)n, NULL, 0);
	if (!err)
		look_at_mode(fd, path);
	if (n > 0)
		sodium_memzero(bytes, (size_t)n);
	if (fd >= 0)
		close(fd);
	free(bytes);
	return err;
}

/* Time since the launch that a handle belongs to: for the first, since the start of this process; for later ones 0. */
static uint64_t age_ms(void)
{
	static int handles;
	uint64_t start = cvy_proc_start(getpid()), ticks = (uint64_t)sysconf(_SC_CLK_TCK);
	struct timespec up;

	if (__atomic_fetch_add(&handles, 1, __ATOMIC_RELAXED) || !start || !ticks || clock_gettime(CLOCK_BOOTTIME, &up))
		return 0;
	start = start * 1000 / ticks;
	return (uint64_t)up.tv_sec * 1000 + (uint64_t)up.tv_nsec / 1000000 - start;
}

static int find_process(void *ctx, const char *host, const char *addr)
{
	struct cvy_agent *agent = ctx;

	return cvy_proc_find(host, agent->args.host, addr);
}

static int start_driver(struct cvy_agent *agent)
{
	const struct cvy_config *config = agent->args.config;
	struct cvy_page *own = agent->args.own_page;
	uint8_t secret[32];
	struct cvy_group_args args = {
		.rank = config->rank,
		.world = config->world,
		.max_ranks = config->max_ranks,
		.create = config->create,
		.admission = config->admission,
		.addr = agent->args.addr,
		.host = agent->args.host,
		.name = config->group,
		.job = config->job,
		.age_ms = age_ms(),
		.join_ms = config->join_ms,
		.lease_ms = config->lease_ms,
		.relink_ms = config->link_ms > 0 ? (config->link_ms + 9) / 10 : 0,
	};
	char *alike = cvy_config_alike(config, config->create == COVEY_CREATE_FIRST);
	int err = 0;

	args.alike = alike;
	if (!alike)
		return cvy_fail(agent->args.box, COVEY_ERR_NOMEM, -1, 0, "no memory for a member");
	if (*config->secret_file) {
		err = read_secret(agent, secret);
		args.secret = secret;
	}
	if (!err &&
	    (getrandom(&args.seed, sizeof(args.seed), 0) < 0 || getrandom(&args.nonce, sizeof(args.nonce), 0) < 0))
		err = cvy_fail(agent->args.box, COVEY_ERR_IO, -1, 0, "no random bytes: %s", strerror(errno));
	if (!err && own->nonce)
		args.nonce = own->nonce;
	if (!err)
		err = cvy_driver_init(&agent->driver, &args, agent->args.seam, &agent->args.observer, agent->args.box,
				      cvy_now_ns());
	sodium_memzero(secret, sizeof(secret));
	free(alike);
	agent->driver.find = find_process;
	agent->driver.find_ctx = agent;
	agent->has_driver = !err;
	return err;
}

int cvy_agent_new(struct cvy_loop *loop, struct cvy_agent **out)
{
	struct cvy_agent *agent = calloc(1, sizeof(*agent));

	if (!agent)
		return COVEY_ERR_NOMEM;
	agent->loop = loop;
	cvy_event_queue_init(&agent->queue);
	sem_init(&agent->ready, 0, 0);
	*out = agent;
	return 0;
}

int cvy_agent_start(struct cvy_agent *agent, const struct cvy_agent_args *args)
{
	const struct cvy_config *config = args->config;
	const struct cvy_store_sink store_sink = { agent, store_reply, store_notice, store_up, store_down };
	const struct cvy_detect_args detect = { args->seam, agent->loop, cvy_agent_sink(agent), config->heartbeat_ms,
						config->hang_ms };
	const struct cvy_ping_args ping = { args->seam, cvy_agent_sink(agent), config->link_ms, config->max_ranks };
	int err;

	agent->args = *args;
	agent->tick_ms = config->heartbeat_ms;
	err = start_driver(agent);
	if (!err)
		err = cvy_detect_new(&detect, &agent->detect);
	if (!err)
		err = cvy_ping_new(&ping, &agent->ping);
	if (!err)
		err = cvy_redis_open(config->store, config->group, agent->loop, &store_sink, STORE_CALL_MS, args->box,
				     &agent->store);
	if (err)
		return err;
	agent->driver.store = agent->store;
	return start_thread(agent);
}

void cvy_agent_stop(struct cvy_agent *agent)
{
	if (!agent)
		return;
	if (agent->has_thread) {
		cvy_loop_stop(agent->loop);
		pthread_join(agent->thread, NULL);
	}
	/* Only if the thread did not get as far as running the loop. */
	if (agent->store)
		agent->store->ops->close(agent->store);
	agent->driver.store = NULL;
	cvy_detect_free(agent->detect);
	cvy_ping_free(agent->ping);
	if (agent->has_driver)
		cvy_driver_clear(&agent->driver);
	sem_destroy(&agent->ready);
	cvy_event_queue_clear(&agent->queue);
	free(agent);
}
