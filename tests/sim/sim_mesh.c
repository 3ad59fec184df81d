/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the engine needs of mesh and waits, in the simulator. Windows are real memory: in the flavour
 * `shm` a peer's is mapped, and a fence makes its addresses inaccessible, so that the first touch after a
 * fence ends the run. In the flavour `tcp` every peer has a private mirror; puts and signals travel as
 * frames, in order on each link, with delay, and are lost when the link is cut.
 */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim.h"

#pragma GCC diagnostic ignored "-Wunused-parameter" /* calls whose shape others give */

#define HEAP_BYTES (128u << 10) /* for the buffers of dispatch and combine */
#define HEAP_SWAPS (512u << 10) /* the same where handles change their sizes */
#define CELL_SLOTS 6		/* of each registered buffer */
#define POOL_BYTES (16u << 10)	/* rings of 2 KiB for messages, so that they wrap soon */

/* ---- windows ---- */

static uint8_t *place(const struct cvy_mesh *mesh, int rank)
{
	return mesh->base + (size_t)rank * mesh->layout.window_bytes;
}

static void map(struct cvy_mesh *mesh, int rank, int prot, int flags, int fd)
{
	if (mmap(place(mesh, rank), mesh->layout.window_bytes, prot, flags | MAP_FIXED, fd, 0) == MAP_FAILED)
		abort();
	mesh->mapped[rank] = prot != PROT_NONE;
}

static void unview(struct cvy_mesh *mesh, int rank)
{
	if (mesh->mapped[rank] && !sim_off("I8")) /* without that checker: what was mapped is still seen */
		map(mesh, rank, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
	mesh->map_inc[rank] = 0;
}

void sim_mesh_open(struct proc *p)
{
	struct cvy_mesh *mesh = &p->mesh;
	struct cvy_layout l = cvy_layout(0, p->sim->slot_bytes);
	size_t heap = app_swaps(p->sim) ? HEAP_SWAPS : HEAP_BYTES;

	mesh->cells = ((l.heap + 4095) & ~(size_t)4095) + heap;
	if (cvy_heap_init(&mesh->heap, mesh->cells - heap, heap))
		abort();
	mesh->cell_bytes = (CELL_SLOTS * l.slot_bytes + 4095) & ~(size_t)4095;
	l.pool = mesh->cells + SIM_CELLS * mesh->cell_bytes;
	l.window_bytes = l.pool + POOL_BYTES;
	mesh->p = p;
	mesh->layout = l;
	mesh->in_last = &mesh->in;
	mesh->fd = memfd_create("sim", MFD_CLOEXEC);
	if (mesh->fd < 0 || ftruncate(mesh->fd, (off_t)l.window_bytes))
		abort();
	mesh->own = mmap(NULL, l.window_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, mesh->fd, 0);
	mesh->base =
		mmap(NULL, l.window_bytes * SIM_RANKS, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (mesh->own == MAP_FAILED || mesh->base == MAP_FAILED)
		abort();
}

static void frame_free(struct frame *f)
{
	free(f->data);
	free(f);
}

static void link_free(struct sim_link *l)
{
	while (l->out) {
		struct frame *f = l->out;

		l->out = f->next;
		frame_free(f);
	}
	free(l);
}

void sim_mesh_close(struct proc *p)
{
	struct cvy_mesh *mesh = &p->mesh;

	for (int r = 0; r < SIM_RANKS; r++)
		if (mesh->link[r])
			link_free(mesh->link[r]);
	while (mesh->old) {
		struct sim_link *l = mesh->old;

		mesh->old = l->link.state;
		link_free(l);
	}
	while (mesh->in) {
		struct frame *f = mesh->in;

		mesh->in = f->next;
		frame_free(f);
	}
	cvy_heap_clear(&mesh->heap);
	munmap(mesh->own, mesh->layout.window_bytes);
	munmap(mesh->base, mesh->layout.window_bytes * SIM_RANKS);
	close(mesh->fd);
}

/* After a failure: what is dear, and needs no list that may be half done. */
void sim_mesh_abandon(struct proc *p)
{
	munmap(p->mesh.own, p->mesh.layout.window_bytes);
	munmap(p->mesh.base, p->mesh.layout.window_bytes * SIM_RANKS);
	close(p->mesh.fd);
}

/* ---- data path of the tcp flavour ---- */

static struct sim_link *live(struct cvy_link *link)
{
	struct sim_link *l = (struct sim_link *)link;

	if (l->open)
		return l;
	sim_fail(link->mesh->p->sim, "G4: process %d uses a data path that was closed, to rank %d", link->mesh->p->id,
		 link->rank);
	return NULL;
}

static void queue(struct sim_link *l, size_t offset, size_t bytes, int signal)
{
	struct frame *f = calloc(1, sizeof(*f));

	if (!f || !(f->data = malloc(bytes)))
		abort();
	f->offset = offset;
	f->bytes = bytes;
	f->signal = signal;
	if (signal)
		memcpy(f->data, l->link.own + offset, bytes);
	*l->out_last = f;
	l->out_last = &f->next;
}

/* To the network: a put takes the bytes that stand in the slot now. */
static int flush(struct sim_link *l)
{
	struct proc *p = l->link.mesh->p, *q = p->sim->proc[l->other];
	struct sim *s = p->sim;
	int moved = 0;

	while (l->out) {
		struct frame *f = l->out;
		uint64_t at = sim_passes(s, p, q) + sim_lag(s, 200);

		if (sim_draw(s, SIM_NET, 16) == 0) /* the socket is full for now */
			break;
		l->out = f->next;
		if (!l->out)
			l->out_last = &l->out;
		if (!f->signal)
			memcpy(f->data, l->link.own + f->offset, f->bytes);
		if (at <= s->frames[p->id][q->id])
			at = s->frames[p->id][q->id] + 1;
		s->frames[p->id][q->id] = at;
		f->at_ns = at;
		f->link = l->id;
		f->rank = p->rank;
		f->next = NULL;
		if (s->link[p->id][q->id] == l->id) {
			*q->mesh.in_last = f;
			q->mesh.in_last = &f->next;
		} else {
			frame_free(f);
		}
		moved = 1;
	}
	return moved;
}

static int tcp_put(struct cvy_link *link, size_t offset, size_t bytes)
{
	struct sim_link *l = live(link);

	if (!l)
		return COVEY_ERR_PEER;
	queue(l, offset, bytes, 0);
	return 0;
}

static int tcp_signal(struct cvy_link *link, size_t offset)
{
	struct sim_link *l = live(link);

	if (!l)
		return COVEY_ERR_PEER;
	queue(l, offset, sizeof(struct cvy_line), 1);
	flush(l);
	return 0;
}

static int arrived(struct sim *s, const struct sim_link *l, const struct frame *f)
{
	uint64_t me = (uint64_t)l->link.mesh->p->id;

	if (f->link != l->id || f->at_ns > s->now)
		return 0;
	return s->link[me][l->other] == l->id || f->at_ns <= s->cut_ns[me][l->other];
}

static int tcp_poll(struct cvy_link *link)
{
	struct sim_link *l = live(link);
	struct cvy_mesh *mesh = link->mesh;
	struct frame **at = &mesh->in;
	int moved = l ? flush(l) : 0;

	if (!l)
		return COVEY_ERR_PEER;
	while (*at) {
		struct frame *f = *at;

		int old = f->rank == link->rank && f->link < l->id; /* of a link that was cut */

		if (!old && !arrived(mesh->p->sim, l, f)) {
			at = &f->next;
			continue;
		}
		if (!old && mesh->mapped[link->rank])
			memcpy(place(mesh, link->rank) + f->offset, f->data, f->bytes);
		*at = f->next;
		frame_free(f);
		moved = 1;
	}
	mesh->in_last = at;
	return moved;
}

static int tcp_unsent(struct cvy_link *link)
{
	struct sim_link *l = live(link);

	return l && l->out != NULL;
}

static int no_fd(struct cvy_link *link, int i, short *events)
{
	*events = 0;
	return -1;
}

static const struct cvy_transport tcp = {
	.name = "tcp", .put = tcp_put, .signal = tcp_signal, .poll = tcp_poll, .unsent = tcp_unsent, .fd = no_fd
};
static const struct cvy_transport shm = { .name = "shm" };

/* ---- links ---- */

static void link_remove(struct cvy_mesh *mesh, int rank)
{
	struct sim_link *l = mesh->link[rank];

	mesh->link[rank] = NULL;
	if (!l)
		return;
	l->open = 0;
	l->link.state = mesh->old;
	mesh->old = l;
}

/* The same incarnation again: its memory stays, as in the real mesh. */
void sim_mesh_up(struct proc *p, struct proc *other, int r, uint64_t inc, uint64_t id)
{
	struct cvy_mesh *mesh = &p->mesh;
	struct sim_link *l = calloc(1, sizeof(*l));

	if (!l)
		abort();
	link_remove(mesh, r);
	if (mesh->map_inc[r] != inc) {
		if (sim_by_tcp(p, other))
			map(mesh, r, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
		else
			map(mesh, r, PROT_READ, MAP_SHARED, other->mesh.fd);
		mesh->map_inc[r] = inc;
		mesh->mirror[r] = sim_by_tcp(p, other);
	}
	l->link = (struct cvy_link){ .ops = sim_by_tcp(p, other) ? &tcp : &shm,
				     .mesh = mesh,
				     .rank = r,
				     .inc = inc,
				     .id = id,
				     .own = mesh->own,
				     .view = place(mesh, r),
				     .window_bytes = mesh->layout.window_bytes };
	l->id = id;
	l->other = other->id;
	l->open = 1;
	l->out_last = &l->out;
	mesh->link[r] = l;
}

int sim_mesh_down(struct proc *p, uint64_t id, int *rank, uint64_t *inc)
{
	struct sim_link *l = NULL;

	for (int r = 0; r < SIM_RANKS && !l; r++)
		if (p->mesh.link[r] && p->mesh.link[r]->id == id)
			l = p->mesh.link[r];
	if (!l)
		return 0;
	*rank = l->link.rank;
	*inc = l->link.inc;
	if (l->link.ops == &tcp)
		link_remove(&p->mesh, *rank);
	else
		l->id = 0; /* a view of shared memory outlives the connection */
	return 1;
}

/* The view stays until the fence: the engine may set aside what a removed member left. */
void sim_mesh_drop(struct proc *p, int rank, uint64_t inc)
{
	struct sim_link *l = p->mesh.link[rank];

	if (p->expects[rank] == inc)
		p->expects[rank] = 0;
	if (!l || l->link.inc != inc)
		return;
	if (l->id && l->id == p->sim->link[p->id][l->other]) /* that process may be linked anew under another rank */
		sim_cut(p, p->sim->proc[l->other], 0);
	link_remove(&p->mesh, rank);
}

/* With the link goes the connection that is being made. */
void cvy_mesh_fence(struct cvy_mesh *mesh, int rank)
{
	struct sim_link *l = mesh->link[rank];
	struct sim *s = mesh->p->sim;
	struct proc *q = mesh->p->engine->view ? sim_proc_of(s, mesh->p->engine->view->member[rank].inc) : NULL;

	if (q && q != mesh->p) {
		mesh->fenced_inc[rank] = q->inc;
		sim_cut(mesh->p, q, 0);
	}

	if (l)
		sim_mesh_drop(mesh->p, rank, l->link.inc);
	mesh->p->expects[rank] = 0;
	unview(mesh, rank);
}

struct cvy_layout cvy_mesh_layout(const struct cvy_mesh *mesh)
{
	return mesh->layout;
}

size_t cvy_mesh_heap_alloc(struct cvy_mesh *mesh, size_t bytes)
{
	return cvy_heap_alloc(&mesh->heap, bytes);
}

/* Registered buffers: cells past the heap. */
size_t cvy_mesh_heap_alloc_top(struct cvy_mesh *mesh, size_t bytes)
{
	for (int i = 0; bytes <= mesh->cell_bytes && i < SIM_CELLS; i++) {
		if (mesh->cell[i])
			continue;
		mesh->cell[i] = 1;
		return mesh->cells + (size_t)i * mesh->cell_bytes;
	}
	return 0;
}

void cvy_mesh_heap_free(struct cvy_mesh *mesh, size_t offset, size_t bytes)
{
	if (offset >= mesh->cells)
		mesh->cell[(offset - mesh->cells) / mesh->cell_bytes] = 0;
	else
		cvy_heap_free(&mesh->heap, offset, bytes);
}

uint8_t *cvy_mesh_own(const struct cvy_mesh *mesh)
{
	return mesh->own;
}

uint8_t *cvy_mesh_view(const struct cvy_mesh *mesh, int rank)
{
	return rank == mesh->p->rank ? mesh->own : place(mesh, rank);
}

struct cvy_link *cvy_mesh_link(const struct cvy_mesh *mesh, int rank)
{
	return mesh->link[rank] ? &mesh->link[rank]->link : NULL;
}

void cvy_link_choke(struct cvy_link *link)
{
	abort(); /* links of the simulator have room without end */
}

struct cvy_page *cvy_mesh_page(void *ctx, int rank)
{
	const struct cvy_mesh *mesh = ctx;

	if (rank == mesh->p->rank)
		return (struct cvy_page *)mesh->own;
	return mesh->mapped[rank] && !mesh->mirror[rank] ? (struct cvy_page *)place(mesh, rank) : NULL;
}

struct cvy_fault *cvy_mesh_fault(struct cvy_mesh *mesh)
{
	return NULL;
}

/* Calls with nothing to do here. */
#define NOTHING_TO_DO(NAME, ...) \
	void NAME(__VA_ARGS__) \
	{ \
	}

NOTHING_TO_DO(cvy_fault_read, struct cvy_fault *fault)
NOTHING_TO_DO(cvy_fault_op, struct cvy_fault *fault, uint64_t seq, const char *name)
NOTHING_TO_DO(cvy_fault_point, struct cvy_fault *fault, const char *name)

/* ---- what wait.c offers: nobody sleeps here, the world steps everyone ---- */

NOTHING_TO_DO(cvy_engine_wake, struct cvy_engine *e)
NOTHING_TO_DO(cvy_engine_announce, struct cvy_engine *e, const struct cvy_line *line)
NOTHING_TO_DO(cvy_engine_announce_to, struct cvy_engine *e, int rank, const struct cvy_line *line)
NOTHING_TO_DO(cvy_engine_kick, struct cvy_engine *e)
NOTHING_TO_DO(cvy_progress_kick, void)

int cvy_engine_unsent(struct cvy_engine *e)
{
	int n = 0;

	for (int i = 0; i < e->here.set.npush; i++) {
		struct cvy_link *link = cvy_mesh_link(e->mesh, e->here.set.push[i]);

		if (link && link->ops->unsent && link->ops->unsent(link))
			n += link->ops->poll(link);
	}
	return n;
}

int cvy_engine_wait(struct cvy_engine *e, struct cvy_op *op, uint64_t deadline_ns)
{
	abort(); /* a simulated application never blocks */
}

void cvy_engine_wait_briefly(struct cvy_engine *e, const struct cvy_op *op)
{
	abort(); /* of blocking calls, too */
}
