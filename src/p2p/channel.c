/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams of bytes over windows. The far end's window is touched only while there is a link to the incarnation that the
 * channel was opened for: only then do the mapped or mirrored bytes belong to it.
 */
#include "channel.h"
#include "size.h"

#include <string.h>

#define LAZY_PART 4 /* of a ring: sockets send credit only when this much has collected */

static size_t round_down(size_t n)
{
	size_t power = 1;

	while (power <= n / 2)
		power *= 2;
	return power;
}

int cvy_channel_open(struct cvy_channel *ch, const struct cvy_channel_args *args)
{
	struct cvy_layout l = cvy_mesh_layout(args->mesh);
	size_t ranks = (size_t)args->max_ranks, ports = cvy_round_up(ranks * sizeof(struct cvy_port), CVY_MEMORY_PAGE);
	size_t pool = l.window_bytes - l.pool, ring = pool > ports ? (pool - ports) / ranks : 0;
	struct cvy_port *port;

	if (ring < CVY_RING_MIN)
		return COVEY_ERR_NOMEM;
	ring = round_down(ring);
	if (ring > CVY_RING_MAX)
		ring = CVY_RING_MAX;
	*ch = (struct cvy_channel){ .mesh = args->mesh,
				    .own = cvy_mesh_own(args->mesh),
				    .rank = args->rank,
				    .self = args->rank == args->own_rank,
				    .inc = args->inc,
				    .own_inc = args->own_inc,
				    .ring = ring,
				    .own_port = l.pool + (size_t)args->rank * sizeof(struct cvy_port),
				    .far_port = l.pool + (size_t)args->own_rank * sizeof(struct cvy_port),
				    .own_ring = l.pool + ports + (size_t)args->rank * ring,
				    .far_ring = l.pool + ports + (size_t)args->own_rank * ring };
	port = cvy_channel_port(ch);
	/* The port still describes an earlier incarnation: clear the counts first, then write the new name. */
	__atomic_store_n(&port->out.tag, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&port->credit.tag, 0, __ATOMIC_RELAXED);
	__atomic_store_n((uint64_t *)(void *)port->credit.data, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&port->out.aux, args->inc, __ATOMIC_RELEASE); /* pairs with the load of aux in look() */
	cvy_named(); /* and before the bytes that follow, with cvy_channel_held() */
	__atomic_store_n(&port->credit.aux, args->inc, __ATOMIC_RELEASE);
	return 0;
}

struct cvy_link *cvy_channel_link(const struct cvy_channel *ch)
{
	struct cvy_link *link = ch->self ? NULL : cvy_mesh_link(ch->mesh, ch->rank);

	return link && link->inc == ch->inc ? link : NULL;
}

struct cvy_port *cvy_channel_port(const struct cvy_channel *ch)
{
	return (struct cvy_port *)(void *)(ch->own + ch->own_port);
}

static uint8_t *far_window(const struct cvy_channel *ch)
{
	if (ch->self)
		return ch->own;
	return cvy_channel_link(ch) ? cvy_mesh_view(ch->mesh, ch->rank) : NULL;
}

const struct cvy_port *cvy_channel_far_port(const struct cvy_channel *ch)
{
	const uint8_t *far = far_window(ch);

	return far ? (const struct cvy_port *)(const void *)(far + ch->far_port) : NULL;
}

/* A new link may have lost bytes on their way: everything that the far end has not consumed is put again. */
static void meet_link(struct cvy_channel *ch, const struct cvy_link *link)
{
	if (link->id == ch->link)
		return;
	if (ch->link) {
		ch->pushed = ch->freed;
		ch->tell = ch->read > 0;
	}
	ch->link = link->id;
}

/* A count of the far end: it never falls (words may come late) and never passes @most. */
static int advance(uint64_t *count, uint64_t to, uint64_t most)
{
	if (to > most)
		return COVEY_ERR_IO;
	if (to <= *count)
		return 0;
	*count = to;
	return 1;
}

int cvy_channel_look(struct cvy_channel *ch, int poll)
{
	struct cvy_link *link = cvy_channel_link(ch);
	const struct cvy_port *port;
	int here = 0, freed = 0;

	ch->looks++;
	ch->now = link;
	ch->far = ch->self ? ch->own : link ? cvy_mesh_view(ch->mesh, ch->rank) : NULL;
	if (link)
		meet_link(ch, link);
	if (link && poll && link->ops->poll)
		link->ops->poll(link); /* the agent replaces a lost one */
	if (!ch->far)
		return 0;
	port = (const struct cvy_port *)(const void *)(ch->far + ch->far_port);
	if (__atomic_load_n(&port->out.aux, __ATOMIC_ACQUIRE) == ch->own_inc) /* pairs with cvy_channel_open */
		here = advance(&ch->here, __atomic_load_n(&port->out.tag, __ATOMIC_ACQUIRE), ch->read + ch->ring);
	if (cvy_channel_awaits_credit(ch) && __atomic_load_n(&port->credit.aux, __ATOMIC_ACQUIRE) == ch->own_inc) {
		const uint64_t *note = (const uint64_t *)(const void *)port->credit.data;

		freed = advance(&ch->freed, __atomic_load_n(&port->credit.tag, __ATOMIC_ACQUIRE), ch->written);
		if (freed >= 0 && __atomic_load_n(note, __ATOMIC_RELAXED) > ch->far_note) {
			ch->far_note = __atomic_load_n(note, __ATOMIC_RELAXED);
			freed = 1;
		}
	}
	return here < 0 || freed < 0 ? COVEY_ERR_IO : here | freed;
}

/* ---- telling ---- */

static int put(struct cvy_channel *ch, struct cvy_link *link)
{
	size_t n = (size_t)(ch->written - ch->pushed), at = (size_t)ch->pushed & (ch->ring - 1);
	size_t first = n < ch->ring - at ? n : ch->ring - at;
	int err = 0;

	if (!link || !link->ops->put)
		return 0;
	if (first)
		err = link->ops->put(link, ch->own_ring + at, first);
	if (!err && n > first)
		err = link->ops->put(link, ch->own_ring, n - first);
	return err;
}

static int tell(struct cvy_channel *ch, struct cvy_link *link, struct cvy_line *line, uint64_t count)
{
	/* pairs with the load of tag in look(): a reader that sees the count sees the bytes, or is done with them */
	__atomic_store_n(&line->tag, count, __ATOMIC_RELEASE);
	if (!link || !link->ops->signal)
		return 0;
	return link->ops->signal(link, (size_t)((uint8_t *)line - ch->own));
}

/* The note is written before the count that announces it. First the old note is made invalid. */
static void write_note(struct cvy_channel *ch, struct cvy_line *line)
{
	const struct cvy_note *note = &ch->brief;
	uint64_t *data = (uint64_t *)(void *)line->data;

	if (note->end != ch->written || ch->pushed + note->bytes != note->end) {
		if (__atomic_load_n(&line->call, __ATOMIC_RELAXED))
			__atomic_store_n(&line->call, 0, __ATOMIC_RELAXED);
		return;
	}
	__atomic_store_n(&line->call, note->end, __ATOMIC_RELAXED);
	/* each pairs with its load in cvy_channel_note: a reader of one of these words sees that the note is newer */
	for (size_t i = 0; i < CVY_NOTE_DATA / 8; i++)
		__atomic_store_n(&data[i], note->data[i], __ATOMIC_RELEASE);
	__atomic_store_n(&line->sig, note->word, __ATOMIC_RELEASE);
	__atomic_store_n(&line->bytes, note->n, __ATOMIC_RELEASE);
}

int cvy_channel_note(const struct cvy_channel *ch, size_t head, struct cvy_note *note)
{
	const struct cvy_line *line = &((const struct cvy_port *)(const void *)(ch->far + ch->far_port))->out;
	const uint64_t *data = (const uint64_t *)(const void *)line->data;

	if (ch->here - ch->read > head + CVY_NOTE_DATA || __atomic_load_n(&line->call, __ATOMIC_RELAXED) != ch->here)
		return 0;
	for (size_t i = 0; i < CVY_NOTE_DATA / 8; i++)
		note->data[i] = __atomic_load_n(&data[i], __ATOMIC_ACQUIRE);
	note->word = __atomic_load_n(&line->sig, __ATOMIC_ACQUIRE);
	note->n = __atomic_load_n(&line->bytes, __ATOMIC_ACQUIRE);
	return __atomic_load_n(&line->call, __ATOMIC_RELAXED) == ch->here && ch->here - ch->read == head + note->n;
}

static int credit_due(const struct cvy_channel *ch, const struct cvy_link *link, int lazy)
{
	uint64_t part = lazy && link && link->ops->signal ? ch->ring / LAZY_PART : 1;

	return ch->tell || ch->read - ch->told >= part || ch->note - ch->noted >= part;
}

int cvy_channel_flush(struct cvy_channel *ch, int lazy)
{
	struct cvy_link *link = ch->now;
	struct cvy_port *port = cvy_channel_port(ch);
	int changed = 0;

	if (!ch->self && (!link || link->id != ch->link))
		return 0;
	if (link && link->ops->unsent && link->ops->unsent(link) >= CVY_LINK_SHARE)
		return 0; /* bytes that collect meanwhile leave with one put */
	if (ch->pushed < ch->written && !put(ch, link)) {
		write_note(ch, &port->out);
		if (!tell(ch, link, &port->out, ch->written)) /* else the next flush puts it again: the same bytes */
			ch->pushed = ch->written;
		changed |= CVY_FLUSHED_OUT;
	}
	if (credit_due(ch, link, lazy)) {
		__atomic_store_n((uint64_t *)(void *)port->credit.data, ch->note, __ATOMIC_RELAXED);
		if (!tell(ch, link, &port->credit, ch->read)) {
			ch->told = ch->read;
			ch->noted = ch->note;
			ch->tell = 0;
		}
		changed |= CVY_FLUSHED_CREDIT;
	}
	return changed;
}

int cvy_channel_behind(const struct cvy_channel *ch)
{
	const struct cvy_link *link = cvy_channel_link(ch);

	if (!ch->self && !link)
		return 0; /* until there is a link */
	if (link && link->id != ch->link && ch->link && (ch->written > ch->freed || ch->read))
		return 1;
	return ch->pushed < ch->written || credit_due(ch, link, 0);
}

/* ---- bytes ---- */

void cvy_channel_write(struct cvy_channel *ch, const void *from, size_t n)
{
	uint8_t *ring = ch->own + ch->own_ring;
	size_t at = (size_t)ch->written & (ch->ring - 1), first = n < ch->ring - at ? n : ch->ring - at;

	memcpy(ring + at, from, first);
	memcpy(ring, (const uint8_t *)from + first, n - first);
	ch->written += n;
}

int cvy_channel_held(const struct cvy_channel *ch)
{
	const struct cvy_port *port = (const struct cvy_port *)(const void *)(ch->far + ch->far_port);

	cvy_read(); /* pairs with cvy_channel_open: the name changes before the bytes do */
	return ch->self || __atomic_load_n(&port->out.aux, __ATOMIC_RELAXED) == ch->own_inc;
}

void cvy_channel_peek(const struct cvy_channel *ch, size_t skip, void *to, size_t n)
{
	const uint8_t *ring = ch->far + ch->far_ring;
	size_t at = (size_t)(ch->read + skip) & (ch->ring - 1), first = n < ch->ring - at ? n : ch->ring - at;

	memcpy(to, ring + at, first);
	memcpy((uint8_t *)to + first, ring, n - first);
}
