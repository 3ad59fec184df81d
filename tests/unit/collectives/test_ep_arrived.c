/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `arrived` of a dispatch: threads that read rows while it runs, against the routing; pages that show which is written
 * first, a row or its word; operations that fail, end with their group, or are consumed once more.
 *
 * labels: redis tsan
 */
#include "ep_fixture.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "calls.h"
#include "ep.h"
#include "ep_quant.h"
#include "handle.h"

enum { WORLD = 3, T = 9, H = 136, K = 3, E = 7, ROWS = WORLD * T, WORDS = COVEY_EP_ARRIVED_ROWS + E * ROWS };
enum { TURNS = 25, GROUPS = 2 };

static const struct way {
	const char *name;
	int preset, dtype, rows_as, experts;
	int masked;   /* one entry of so many, 0: there is no mask */
	int left_out; /* rank 2, by the others */
} ways[] = {
	{ "flat", COVEY_EP_FLAT, COVEY_BFLOAT16, COVEY_EP_ROWS_BF16, E, 0, 0 },
	{ "flat, fp16, masked", COVEY_EP_FLAT, COVEY_FLOAT16, COVEY_EP_ROWS_BF16, E, 3, 0 },
	{ "flat, int8, rank 2 is left out", COVEY_EP_FLAT, COVEY_BFLOAT16, COVEY_EP_ROWS_INT8, E, 0, 1 },
	{ "flat, rank 2 has no experts", COVEY_EP_FLAT, COVEY_BFLOAT16, COVEY_EP_ROWS_E4M3, 4, 0, 0 },
	{ "ll", COVEY_EP_LL, COVEY_BFLOAT16, COVEY_EP_ROWS_BF16, E, 2, 1 },
	{ "ll, int4", COVEY_EP_LL, COVEY_FLOAT16, COVEY_EP_ROWS_INT4, E, 0, 0 },
	{ "win, int8", COVEY_EP_WIN, COVEY_BFLOAT16, COVEY_EP_ROWS_INT8, E, 0, 0 },
	{ "win, e4m3, masked, rank 2 is left out", COVEY_EP_WIN, COVEY_FLOAT16, COVEY_EP_ROWS_E4M3, E, 3, 1 },
	{ "compact", COVEY_EP_COMPACT, COVEY_BFLOAT16, COVEY_EP_ROWS_BF16, E, 0, 0 },
	{ "compact, e4m3, masked", COVEY_EP_COMPACT, COVEY_FLOAT16, COVEY_EP_ROWS_E4M3, E, 2, 1 },
};

enum { WAYS = sizeof(ways) / sizeof(ways[0]) };

struct job {
	const struct way *way;
	struct covey_ep *ep;
	int rank, tokens;
	uint64_t here;	    /* sources whose rows must come */
	int rows[E][WORLD]; /* of each bin and source */
	uint16_t x[T * H], packed[E * ROWS * H];
	float scales[E * GROUPS * ROWS], weights[T * K], recv_weights[ROWS * K];
	int32_t ids[T * K], left[T * K]; /* left: without what is masked */
	uint8_t mask[T * K], seen[E * ROWS];
	int32_t count[E], src[E * ROWS], triplets[E * ROWS * 3], flat[E * ROWS * 2], recv_experts[ROWS * K];
	int32_t active[WORLD];
	int64_t range[E * WORLD];
	uint32_t arrived[WORDS];
};

static struct job jobs[WORLD];

static int once(const struct job *j)
{
	return j->way->preset == COVEY_EP_COMPACT;
}

static int stands_close(const struct job *j)
{
	return j->way->preset == COVEY_EP_WIN;
}

static int bins(const struct job *j)
{
	return once(j) ? j->ep->el > 0 : j->ep->el;
}

/* ---- what they give, and what must come ---- */

static void fill(struct job *j, uint64_t seed)
{
	uint64_t state = seed * 977 + (uint64_t)j->rank + 1;

	j->tokens = (int)(harness_random(&state) % (T + 1));
	for (int i = 0; i < T * H; i++)
		j->x[i] = (uint16_t)(0x3c00 + harness_random(&state) % 512);
	for (int i = 0; i < T * K; i++) {
		j->ids[i] = seed % 4 == 3 ? 2 : (int32_t)(harness_random(&state) % (E + 2)) - 1;
		j->weights[i] = (float)(1 + harness_random(&state) % 8) / 8;
		j->mask[i] = j->way->masked && harness_random(&state) % (uint64_t)j->way->masked == 0 ? 0 : 1;
		j->left[i] = j->mask[i] && j->ids[i] < j->way->experts ? j->ids[i] : -1;
	}
	memset(j->seen, 0, sizeof(j->seen));
	j->here = j->way->left_out ? (j->rank == 2 ? 4 : 3) : 7;
}

/* The bin here of entry @i of @from, and -1 if it makes no row. */
static int bin_of(const struct job *j, const struct job *from, int i)
{
	int le = from->left[i] < 0 ? -1 : j->ep->local[from->left[i]];

	for (int before = i / K * K; once(j) && le >= 0 && before < i; before++)
		if (from->left[before] >= 0 && j->ep->local[from->left[before]] >= 0)
			return -1;
	return once(j) && le >= 0 ? 0 : le;
}

static void expect(struct job *j)
{
	memset(j->rows, 0, sizeof(j->rows));
	for (int s = 0; s < WORLD; s++)
		for (int i = 0; j->here >> s & 1 && i < jobs[s].tokens * K; i++) {
			int bin = bin_of(j, &jobs[s], i);

			if (bin >= 0 && j->rows[bin][s] < T)
				j->rows[bin][s]++;
		}
}

/* Where the rows of @bin begin, and how many there are. */
static int first_row(const struct job *j, int bin, int *n)
{
	int first = 0;

	for (int b = 0; b <= bin; b++) {
		first += b ? *n : 0;
		*n = j->rows[b][0] + j->rows[b][1] + j->rows[b][2];
	}
	return stands_close(j) ? first : bin * ROWS;
}

/* The bin of a row that is there. */
static int bin_at(const struct job *j, int row)
{
	for (int bin = 0, n; bin < bins(j); bin++)
		if (row >= first_row(j, bin, &n) && row < first_row(j, bin, &n) + n)
			return bin;
	must(0, "%s: row %d is of no bin", j->way->name, row);
	return -1;
}

/* ---- a reader ---- */

static int told(const struct job *j, int word)
{
	return __atomic_load_n(&j->arrived[word], __ATOMIC_ACQUIRE) == COVEY_EP_ARRIVED;
}

static void check_elements(const struct job *j, int row, const uint16_t *x)
{
	const struct cvy_ep_code *code = cvy_ep_code_of(j->way->rows_as);
	const size_t bytes = cvy_ep_code_bytes(code, H), groups = cvy_ep_code_groups(code, H);
	const struct cvy_ep_plain plain = { x, j->way->dtype, H, NULL, NULL };
	const uint8_t *got = (const uint8_t *)j->packed + (size_t)row * bytes;
	const int by_row = once(j) || stands_close(j), bin = row / ROWS;
	uint8_t codes[H];
	float scales[GROUPS];

	if (!groups) {
		must(!memcmp(got, x, bytes), "%s: row %d", j->way->name, row);
		return;
	}
	cvy_ep_quantise(j->way->rows_as, &plain, codes, scales, 1);
	must(!memcmp(got, codes, bytes), "%s: codes of row %d", j->way->name, row);
	for (size_t g = 0; g < groups; g++)
		must(scales[g] == j->scales[by_row ? (size_t)row * groups + g
						   : ((size_t)bin * groups + g) * ROWS + (size_t)(row % ROWS)],
		     "%s: scale of row %d", j->way->name, row);
}

static void check_row(const struct job *j, int row)
{
	const int s = j->flat[row * 2], i = j->flat[row * 2 + 1], bin = bin_at(j, row);
	const int32_t *triplet = j->triplets + (ptrdiff_t)row * 3;

	must(s >= 0 && s < WORLD && j->here >> s & 1 && i >= 0 && i < jobs[s].tokens * K, "%s: row %d is of (%d, %d)",
	     j->way->name, row, s, i);
	must(bin_of(j, &jobs[s], i) == bin, "%s: (%d, %d) is not of bin %d", j->way->name, s, i, bin);
	must(j->src[row] == i / K && triplet[0] == s && triplet[1] == i / K && triplet[2] == i % K,
	     "%s: (%d, %d): token %d, triplet (%d, %d, %d)", j->way->name, s, i, j->src[row], triplet[0], triplet[1],
	     triplet[2]);
	check_elements(j, row, jobs[s].x + (ptrdiff_t)(i / K) * H);
	for (int k = 0; once(j) && k < K; k++) {
		int id = jobs[s].left[i / K * K + k], le = id < 0 ? -1 : j->ep->local[id];

		must(j->recv_experts[row * K + k] == le, "%s: expert %d of row %d", j->way->name, k, row);
		must(j->recv_weights[row * K + k] == (le < 0 ? 0 : jobs[s].weights[i / K * K + k]),
		     "%s: weight %d of row %d", j->way->name, k, row);
	}
}

static void check_range(const struct job *j)
{
	for (int bin = 0; bin < bins(j); bin++) {
		int n, begin = stands_close(j) ? first_row(j, bin, &n) : 0, first = begin;

		for (int s = 0; s < WORLD; s++) {
			must(j->range[bin * WORLD + s] == ((int64_t)j->rows[bin][s] << 32 | first),
			     "%s: range of bin %d, source %d", j->way->name, bin, s);
			first += j->rows[bin][s];
		}
		must(once(j) || j->count[bin] == first - begin, "%s: count of expert %d", j->way->name, bin);
	}
}

/* Rows as they are announced, in any order, until the dispatch has ended and once more. */
static void *read_rows(void *arg)
{
	struct job *j = arg;
	const uint64_t end = harness_deadline(WATCHDOG_MS);
	int ended, ranged = 0;

	do {
		must(harness_now_ns() < end, "%s: no end", j->way->name);
		sched_yield();
		ended = told(j, COVEY_EP_ARRIVED_ENDED);
		if (!ranged && told(j, COVEY_EP_ARRIVED_RANGE)) {
			check_range(j);
			ranged = 1;
		}
		for (int row = 0; row < bins(j) * ROWS; row++)
			if (!j->seen[row] && told(j, COVEY_EP_ARRIVED_ROWS + row)) {
				check_row(j, row);
				j->seen[row] = 1;
			}
	} while (!ended);
	must(ranged, "%s: the range is not told", j->way->name);
	return NULL;
}

/* ---- dispatches that are read while they run ---- */

static struct covey_ep *create(struct covey_group *group, const struct way *w, int tokens, int hidden)
{
	struct covey_ep_config c = ep_config(tokens, hidden, K, w->experts);
	struct covey_ep *ep = NULL;

	c.preset = w->preset;
	c.dtype = w->dtype;
	c.rows = w->rows_as;
	must(!covey_ep_create(group, &c, &ep), "create");
	return ep;
}

static void dispatch_args(struct job *j, struct covey_dispatch_args *a)
{
	*a = EP_DISPATCH(j);
	a->weights = j->weights;
	a->packed_scales = j->scales;
	a->recv_experts = j->recv_experts;
	a->recv_weights = j->recv_weights;
	a->token_mask = j->way->masked ? j->mask : NULL;
	a->mask_columns = K;
	a->triplets = j->triplets;
	a->flat = j->flat;
	a->arrived = j->arrived;
	for (int r = 0; r < WORLD; r++)
		j->active[r] = r != 2;
	a->active_ranks = j->way->left_out ? j->active : NULL;
}

/* Exactly the rows that are here are announced. The words are for the next dispatch then. */
static void check_words(struct job *j)
{
	must(!j->arrived[COVEY_EP_ARRIVED_AGAIN], "%s: rows are placed once", j->way->name);
	for (int bin = 0; bin < bins(j); bin++) {
		int n, first = first_row(j, bin, &n);

		for (int row = first; row < first + n; row++) {
			must(j->arrived[COVEY_EP_ARRIVED_ROWS + row] == COVEY_EP_ARRIVED && j->seen[row],
			     "%s: bin %d, row %d: word %x", j->way->name, bin, row,
			     j->arrived[COVEY_EP_ARRIVED_ROWS + row]);
			j->arrived[COVEY_EP_ARRIVED_ROWS + row] = j->seen[row] = 0;
		}
	}
	for (int word = j->ep->el ? COVEY_EP_ARRIVED_ROWS : 0; word < WORDS; word++)
		must(!j->arrived[word] && !(word >= COVEY_EP_ARRIVED_ROWS && j->seen[word - COVEY_EP_ARRIVED_ROWS]),
		     "%s: word %d", j->way->name, word);
	memset(j->arrived, 0, sizeof(j->arrived));
}

static void turn(struct job *j)
{
	struct covey_dispatch_args a = COVEY_DISPATCH_INIT;
	pthread_t reader;

	expect(j);
	dispatch_args(j, &a);
	if (j->ep->el)
		must(!pthread_create(&reader, NULL, read_rows, j), "a thread");
	must(!covey_dispatch(j->ep, &a, NULL, NULL), "dispatch");
	must(!j->ep->el || told(j, COVEY_EP_ARRIVED_ENDED), "%s: it has returned", j->way->name);
	if (j->ep->el)
		pthread_join(reader, NULL);
	check_words(j);
}

TEST_RANKS_OVER_BOTH(rows_are_read_while_the_dispatch_runs, WORLD)
{
	for (int i = 0; i < WAYS; i++) {
		struct job *j = &jobs[m->rank];

		memset(j, 0, sizeof(*j));
		j->rank = m->rank;
		j->way = &ways[i];
		j->ep = create(m->group, j->way, T, H);
		for (uint64_t seed = 0; seed < TURNS; seed++) {
			fill(j, seed);
			harness_meet(m); /* all are known before one looks */
			turn(j);
			harness_meet(m); /* all have looked */
		}
		covey_ep_destroy(j->ep);
	}
}

/* ---- which is written first ---- */

/* Outputs that fault when they are touched for the first time: @word must have this value by then. */
static struct trap {
	uint8_t *at[8];
	int n, faults;
	const uint32_t *word;
	uint32_t value;
	size_t page;
} trap;

static void *trapped(void)
{
	void *at = mmap(NULL, trap.page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	must(at != MAP_FAILED && trap.n < 8, "memory");
	return trap.at[trap.n++] = at;
}

static void on_fault(int number, siginfo_t *info, void *context)
{
	(void)number, (void)context;
	for (int i = 0; i < trap.n; i++)
		if ((uint8_t *)info->si_addr >= trap.at[i] && (uint8_t *)info->si_addr < trap.at[i] + trap.page) {
			if (__atomic_load_n(trap.word, __ATOMIC_ACQUIRE) != trap.value)
				_exit(3);
			trap.faults++;
			mprotect(trap.at[i], trap.page, PROT_READ | PROT_WRITE);
			return;
		}
	_exit(4);
}

static void set_trap(const uint32_t *word, uint32_t value)
{
	struct sigaction catch = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };

	trap.word = word;
	trap.value = value;
	trap.faults = 0;
	for (int i = 0; i < trap.n; i++)
		must(!mprotect(trap.at[i], trap.page, PROT_NONE), "mprotect");
	must(!sigaction(SIGSEGV, &catch, NULL), "sigaction");
}

static void spring_open(void)
{
	signal(SIGSEGV, SIG_DFL);
	for (int i = 0; i < trap.n; i++)
		must(!munmap(trap.at[i], trap.page), "munmap");
	memset(&trap, 0, sizeof(trap));
}

/* One token of one rank, so one row, with each of its parts in a page of its own. */
static void trapped_args(struct job *j, const struct way *w, struct covey_dispatch_args *a)
{
	trap.page = (size_t)sysconf(_SC_PAGESIZE);
	memset(j, 0, sizeof(*j));
	j->way = w;
	dispatch_args(j, a);
	a->token_mask = NULL;
	a->active_ranks = NULL;
	a->num_tokens = 1;
	a->packed_x = trapped();
	a->src_info = trapped();
	a->triplets = trapped();
	a->flat = trapped();
	if (j->way->rows_as != COVEY_EP_ROWS_BF16)
		a->packed_scales = trapped();
	if (once(j)) {
		a->recv_experts = trapped();
		a->recv_weights = trapped();
	}
	j->ids[0] = 1;
	j->ids[1] = j->ids[2] = -1;
}

TEST_RANKS(a_row_is_told_when_all_of_it_is_written, 1)
{
	for (int i = 0; i < WAYS; i++) {
		struct covey_dispatch_args a = COVEY_DISPATCH_INIT;
		struct job *j = &jobs[0];
		int word;

		trapped_args(j, &ways[i], &a);
		word = COVEY_EP_ARRIVED_ROWS + (once(j) || stands_close(j) ? 0 : T); /* row 0, of expert 1 */
		j->ep = create(m->group, j->way, T, H);
		set_trap(&j->arrived[word], 0);
		must(!covey_dispatch(j->ep, &a, NULL, NULL), "dispatch");
		must(trap.faults == trap.n, "%s: %d of %d parts of a row", j->way->name, trap.faults, trap.n);
		must(told(j, word) && told(j, COVEY_EP_ARRIVED_ENDED), "%s: the row is told", j->way->name);
		spring_open();
		covey_ep_destroy(j->ep);
	}
}

/*
 * A rank that has read the parts of others, and finds that they are in a later view, reads them again in that view. Here
 * the operation is consumed a second time by hand.
 */
TEST_RANKS(before_rows_are_placed_anew_it_is_told, 1)
{
	struct cvy_engine *e = cvy_handle_engine(m->group);
	struct covey_dispatch_args a = COVEY_DISPATCH_INIT;
	struct job *j = &jobs[0];
	struct cvy_op *op;

	trapped_args(j, &ways[0], &a);
	j->ep = create(m->group, j->way, T, H);
	set_trap(&j->arrived[COVEY_EP_ARRIVED_AGAIN], 0);
	must(!covey_dispatch_send(j->ep, &a, NULL), "send");
	op = j->ep->sent[CVY_EP_DISPATCHES];
	pthread_mutex_lock(cvy_engine_lock(e));
	while (!cvy_op_decided(op))
		cvy_engine_step(e);
	must(trap.faults == trap.n && !j->arrived[COVEY_EP_ARRIVED_AGAIN], "consumed once");
	set_trap(&j->arrived[COVEY_EP_ARRIVED_AGAIN], 1);
	op->kind->consume(e, op, 0);
	pthread_mutex_unlock(cvy_engine_lock(e));
	must(trap.faults == trap.n && j->arrived[COVEY_EP_ARRIVED_AGAIN] == 1, "consumed twice");
	must(!covey_dispatch_recv(j->ep, 0, NULL), "receive");
	spring_open();
	covey_ep_destroy(j->ep);
}

/* ---- every outcome ---- */

/* Rank 0 dispatches, rank 1 does not; then rank 0 sends one more and closes its group. */
static void in_vain(struct member *m)
{
	struct covey_dispatch_args a = COVEY_DISPATCH_INIT;
	struct job *j = &jobs[m->rank];
	pthread_t reader;

	memset(j, 0, sizeof(*j));
	j->rank = m->rank;
	j->way = &ways[0];
	j->ep = create(m->group, j->way, T, H);
	m->no_leave = 1;
	if (m->rank) {
		must(covey_barrier(m->group, NULL, NULL) == COVEY_ERR_MISMATCH, "barrier");
		harness_meet(m); /* its group is open until rank 0 has heard, too */
		covey_ep_destroy(j->ep);
		return;
	}
	dispatch_args(j, &a);
	must(!pthread_create(&reader, NULL, read_rows, j), "a thread"); /* of a range without rows */
	must(covey_dispatch(j->ep, &a, NULL, NULL) == COVEY_ERR_MISMATCH, "dispatch");
	harness_meet(m);
	pthread_join(reader, NULL);
	check_words(j);
	must(!covey_dispatch_send(j->ep, &a, NULL), "send");
	covey_ep_destroy(j->ep);
}

TEST(the_end_is_told_whatever_the_outcome)
{
	struct covey_config config = harness_config("eparrivedfails", 2);

	harness_threads(&config, in_vain, NULL);
	must(told(&jobs[0], COVEY_EP_ARRIVED_ENDED), "the group was closed");
	must(!jobs[0].arrived[COVEY_EP_ARRIVED_ROWS], "no row has come");
}

/* ---- refusals ---- */

static void refused(struct job *j, const struct covey_dispatch_args *a, const char *cause)
{
	must_be_invalid(j->ep->group, covey_dispatch(j->ep, a, NULL, NULL), cause);
	must(!told(j, COVEY_EP_ARRIVED_ENDED), "a refused call writes nothing");
}

TEST_RANKS(what_cannot_be_given_is_refused, 1)
{
	struct covey_dispatch_args a = COVEY_DISPATCH_INIT;
	struct job *j = &jobs[0];

	memset(j, 0, sizeof(*j));
	j->way = &ways[0];
	j->ep = create(m->group, j->way, T, H);
	dispatch_args(j, &a);
	a.flat = NULL;
	refused(j, &a, "flat must not be NULL with COVEY_EP_FLAT");
	a.flat = j->flat;
	a.arrived = (uint32_t *)(void *)((uint8_t *)j->arrived + 2);
	refused(j, &a, "arrived must be 4-byte aligned");
	covey_ep_destroy(j->ep);
}

HARNESS_MAIN(.name = "collectives/ep_arrived")
