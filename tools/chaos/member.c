/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process of the crew: one thread for every group of its rank, so that a waiting group delays no other. Each works
 * without end, agrees with its group at safe points when to stop, and ends the whole process at the first broken
 * promise.
 */
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "covey_device.h"
#include "work.h"

#define ADMIT_EVERY 16 /* steps from one safe point to the next */

const char *const chaos_work_names[CHAOS_W_COUNT] = {
	OPERATION_LIST(OPERATION_NAME)[CHAOS_W_MESSAGES] = "messages", "dispatch", "combine", "admit", "come", "control"
};
const char *const chaos_trap_names[CHAOS_T_COUNT] = { "",	 "before-dispatch", "in-dispatch",
						      "between", "in-combine",	    "after-combine" };

static volatile sig_atomic_t leaving;

static void leave_soon(int number)
{
	(void)number;
	leaving = 1;
}

int chaos_member_fail(struct chaos_member *m, const char *what, int err)
{
	struct covey_error_info info = { 0 };

	covey_last_error(m->group, &info);
	snprintf(m->desk->cause, sizeof(m->desk->cause), "group %d: step %llu: %s: %s: %.200s", m->number,
		 (unsigned long long)m->step, what, covey_strerror(err), info.cause);
	if (err == COVEY_ERR_FENCED)
		return CHAOS_EXIT_FENCED;
	return err == COVEY_ERR_CLOSED ? CHAOS_EXIT_RETIRED : 1;
}

int chaos_bad_bytes(struct chaos_member *m, const char *what, size_t at, double got, double want)
{
	if (m->scribbles)
		return 0;
	snprintf(m->desk->cause, sizeof(m->desk->cause),
		 "group %d: %s: wrong bytes at step %llu, seq %llu, epoch %u, mask %#llx: element %zu is %g and must "
		 "be %g",
		 m->number, what, (unsigned long long)m->step, (unsigned long long)m->record.seq, m->record.epoch,
		 (unsigned long long)m->record.mask, at, got, want);
	return 1;
}

void chaos_begin(struct chaos_member *m, int op)
{
	m->record = (struct chaos_record){ .step = m->step, .op = op, .enter_ns = tool_now_ns() };
	m->log = m->seat;
	__atomic_store_n(&m->seat->inside, 1u + op, __ATOMIC_RELEASE);
}

int chaos_end(struct chaos_member *m, int err, const struct covey_result *result)
{
	if (!m->record.done_ns) /* of a device: at its outcome */
		m->record.done_ns = tool_now_ns();
	__atomic_store_n(&m->seat->inside, 0, __ATOMIC_RELEASE);
	if (err && err != COVEY_ERR_ROOT && err != COVEY_ERR_LOST && !(err == COVEY_ERR_MISMATCH && m->mistake) &&
	    !(err == COVEY_ERR_PEER && m->crew->mix.fails))
		return chaos_member_fail(m, chaos_work_names[m->record.op], err);
	m->record.seq = result->seq;
	m->record.epoch = result->epoch;
	m->record.status = err;
	m->record.mask = result->mask.word[0];
	return 0;
}

/* From its view events the parent knows when a view was agreed. */
static void note_views(struct chaos_member *m, uint32_t epoch)
{
	struct covey_event event;

	while (!covey_event_next(m->group, &event)) {
		struct chaos_view *view = &m->desk->view[event.epoch % CHAOS_VIEWS];

		m->desk->suspects += event.kind == COVEY_EVENT_SUSPECT;
		if (event.kind != COVEY_EVENT_VIEW)
			continue;
		view->time_ns = event.time_ns;
		__atomic_store_n(&view->epoch, event.epoch, __ATOMIC_RELEASE);
	}
	if (m->desk->view[epoch % CHAOS_VIEWS].epoch == epoch)
		m->epoch = epoch;
}

/* The parent reads every millisecond; our death signal ensures that it lives. */
void chaos_put(struct chaos_member *m)
{
	struct chaos_seat *log = m->log;
	uint64_t head = log->head;

	while (head - __atomic_load_n(&log->tail, __ATOMIC_ACQUIRE) == CHAOS_SEAT_RING)
		sched_yield();
	log->ring[head % CHAOS_SEAT_RING] = m->record;
	__atomic_store_n(&log->head, head + 1, __ATOMIC_RELEASE);
	if (m->crew->bench && (m->record.epoch != m->epoch || m->record.op == CHAOS_W_ADMIT))
		note_views(m, m->record.epoch);
}

void chaos_trap_at(struct chaos_member *m, enum chaos_trap trap)
{
	if (__atomic_load_n(&m->desk->trap, __ATOMIC_ACQUIRE) == trap)
		kill(getpid(), SIGKILL);
}

static int safe_point(struct chaos_member *m)
{
	struct covey_result result = { 0 };
	int err, code;

	chaos_handles_close(m); /* joiners have none of them */
	chaos_begin(m, CHAOS_W_ADMIT);
	if (m->device && m->crew->seed % 2 && !m->crew->bench)
		err = covey_admit_async(m->group, &m->step, sizeof(m->step), chaos_stream(m), &result);
	else
		err = covey_admit(m->group, &m->step, sizeof(m->step), &result);
	code = chaos_end(m, err, &result);
	if (code)
		return code;
	m->record.step = m->step;
	chaos_put(m);
	code = chaos_device_admitted(m);
	if (code || result.size == m->size)
		return code;
	m->size = result.size;
	return chaos_ep_resize(m);
}

/* All obey one command in one place, because they agree on the highest that one of them saw. */
static int agree(struct chaos_member *m, int32_t *command)
{
	int32_t mine = (int32_t)__atomic_load_n(&m->crew->command, __ATOMIC_ACQUIRE);
	struct covey_result result = { 0 };
	int err, code;

	chaos_begin(m, CHAOS_W_CONTROL);
	err = covey_allreduce(&mine, command, 1, COVEY_INT32, COVEY_MAX, m->group, NULL, &result);
	code = chaos_end(m, err, &result);
	if (code)
		return code;
	if (m->record.status) /* a rank is lost, which the next safe point acknowledges */
		*command = CHAOS_RUN;
	m->record.checksum = (uint64_t)*command;
	chaos_put(m);
	return 0;
}

/* Sleeps until the parent withdraws CHAOS_IDLE; a rank that has not seen the command does not stop at all. */
static void stay_idle(struct chaos_member *m)
{
	while (__atomic_load_n(&m->crew->command, __ATOMIC_ACQUIRE) == CHAOS_IDLE)
		syscall(SYS_futex, &m->crew->command, FUTEX_WAIT, CHAOS_IDLE, NULL, NULL, 0);
}

/*
 * Ballast: memory that the kernel must free when this process dies. A replacement touches it beside its operations: it
 * is for its own death later, not work of a joiner.
 */
static void *touch(void *arg)
{
	struct chaos_member *m = arg;
	uint64_t bytes = m->crew->touch_bytes;
	char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		return NULL;
	madvise(memory, bytes, MADV_NOHUGEPAGE);
	for (uint64_t i = 0; i < bytes; i += 4096)
		memory[i] = 1;
	__atomic_store_n(&m->desk->touch_ns, tool_now_ns(), __ATOMIC_RELEASE);
	return NULL;
}

static void touch_beside(struct chaos_member *m)
{
	pthread_t thread;

	if (!pthread_create(&thread, NULL, touch, m))
		pthread_detach(thread);
}

uint64_t chaos_scramble(uint64_t x)
{
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

uint64_t chaos_draw(const struct chaos_member *m, unsigned what, uint64_t below)
{
	return chaos_scramble(m->random + what * UINT64_C(15485863)) % below;
}

static int work(struct chaos_member *m)
{
	int32_t command = CHAOS_RUN;
	int code = 0;

	for (bool first = true; !leaving; m->step++, first = false) {
		if (first || m->step % ADMIT_EVERY == 0) {
			code = safe_point(m);
			if (!code)
				code = agree(m, &command);
			if (code || command == CHAOS_STOP)
				return code;
			if (command == CHAOS_IDLE)
				stay_idle(m);
		}
		m->random = chaos_scramble(m->crew->seed + (uint64_t)m->number * 1000003 + m->step * 7919);
		code = chaos_work(m);
		if (code)
			return code;
		if (first && m->joiner && m->crew->touch_bytes)
			touch_beside(m);
	}
	return 0;
}

static int join(struct chaos_member *m)
{
	struct covey_config config = COVEY_CONFIG_INIT;
	char name[32];
	int err;

	snprintf(name, sizeof(name), "crew%d", m->number);
	config.store = m->crew->store;
	config.group = name;
	config.rank = m->rank;
	config.world = m->crew->members;
	config.max_ranks = m->crew->bench ? 0 : CHAOS_MAX_RANKS;
	config.create = m->joiner ? COVEY_CREATE_NEVER : COVEY_CREATE_FIRST;
	err = covey_join(&config, &m->group);
	if (!err && m->crew->mix.fails)
		err = covey_set_on_loss(m->group, COVEY_ON_LOSS_FAIL);
	return err ? chaos_member_fail(m, "join", err) : 0;
}

static int prepare(struct chaos_member *m)
{
	size_t most = 64;
	void *memory = NULL;

	for (int i = 0; i < m->crew->sizes; i++)
		most = m->crew->bytes[i] > most ? m->crew->bytes[i] : most;
	/* Every second rank sends from a registered buffer, if its window has room. */
	if (!m->crew->plain && (m->rank + m->number) % 2 &&
	    !covey_mem_alloc(m->group, most + CHAOS_ROOM_SLACK, &memory))
		m->lends = true;
	m->send = m->lends ? memory : calloc(1, most + CHAOS_ROOM_SLACK);
	m->home = m->send;
	m->recv = calloc(1, most + CHAOS_ROOM_SLACK);
	if (!m->send || !m->recv || chaos_inputs_make(m, most + CHAOS_ROOM_SLACK))
		return chaos_member_fail(m, "no memory", COVEY_ERR_NOMEM);
	return chaos_device_twin(m, m->send, most + CHAOS_ROOM_SLACK) ||
	       chaos_device_twin(m, m->recv, most + CHAOS_ROOM_SLACK);
}

/* The first copies of new memory take longer than others. */
static int warm(struct chaos_member *m)
{
	int err = 0;

	for (int back = 0; back < 2 && !err; back++)
		err = chaos_device_copy(m, m->send, back) || chaos_device_copy(m, m->recv, back);
	return err;
}

static void *seat_main(void *arg)
{
	struct chaos_member *m = arg;
	int code;

	if (m->crew->bench) /* so that it does not count as growth later */
		memset(m->seat->ring, 0, sizeof(m->seat->ring));
	if (!m->joiner && m->crew->touch_bytes)
		touch(m);
	code = chaos_device_open(m);
	if (!code && m->crew->plain) /* what is measured begins with all of it in place */
		code = prepare(m);
	if (!code && m->crew->plain)
		code = warm(m);
	m->desk->ready_ns = tool_now_ns();
	if (!code)
		code = join(m);
	if (!code && !m->crew->plain)
		code = prepare(m);
	m->size = m->joiner ? 0 : m->crew->members; /* a joiner learns it at its first safe point */
	if (!code)
		code = chaos_ep_open(m);
	if (!code)
		code = work(m);
	if (code) /* the other groups of this process see a death */
		_exit(code);
	chaos_handles_close(m);
	chaos_ep_close(m);
	chaos_device_close(m);
	if (covey_leave(m->group, 0))
		_exit(chaos_member_fail(m, "leave", COVEY_ERR_TIMEOUT));
	covey_close(m->group);
	if (!m->lends) /* a registered buffer is freed with the group */
		free(m->home);
	free(m->recv);
	free(m->inputs);
	return NULL;
}

int chaos_member_main(const struct chaos_options *opt)
{
	struct chaos_member member[CHAOS_GROUPS] = { 0 };
	pthread_t thread[CHAOS_GROUPS];
	const char *rule = getenv("COVEY_FAULT");
	struct chaos_crew *crew;
	int threads = 0;

	crew = mmap(NULL, sizeof(*crew), PROT_READ | PROT_WRITE, MAP_SHARED, opt->shared_fd, 0);
	if (crew == MAP_FAILED)
		return 1;
	close(opt->shared_fd);
	signal(SIGTERM, leave_soon);
	signal(SIGXFSZ, SIG_IGN); /* out of shared memory is an error, not a death */
	for (int g = 0; g < crew->groups; g++) {
		struct chaos_member *m = &member[threads];

		m->crew = crew;
		m->desk = &crew->desk[opt->desk];
		m->seat = &m->desk->seat[g];
		m->number = g;
		m->joiner = opt->joiner;
		m->scribbles = rule && strstr(rule, "scribble");
		if (!chaos_in_group(crew, g, opt->rank, &m->rank))
			continue;
		if (pthread_create(&thread[threads], NULL, seat_main, m))
			return 1;
		threads++;
	}
	for (int i = 0; i < threads; i++)
		pthread_join(thread[i], NULL);
	return 0;
}
