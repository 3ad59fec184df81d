/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A joiner makes its handle of dispatch and combine before it is let in: it is laid out for the group that lets it in.
 *
 * labels: redis tsan
 */
#include "ep_layer.h"

#include <pthread.h>

enum { GROWN = 3, ROOM = 8, TOKENS = 12, HIDDEN = 64, ROUNDS = 10 };

struct growth {
	struct covey_config config;
	int preset, named; /* named: the joiner's config names owners, which are those of blocks */
};

static struct covey_group *join_late(struct covey_config config, int rank)
{
	config.create = COVEY_CREATE_NEVER;
	config.world = 0;
	return harness_join(&config, rank);
}

/* Before its safe point a joiner does not know the size of the group: it is told the most. */
static void sizes_of_the_most(struct covey_group *group, int max_ranks)
{
	struct covey_ep_config c = ep_config(TOKENS, HIDDEN, LAYER_EXPERTS, LAYER_EXPERTS);
	struct covey_ep_sizes s = COVEY_EP_SIZES_INIT;

	must(!covey_ep_sizes(group, &c, 0, &s), "sizes");
	must(s.ranks == max_ranks && s.rows == max_ranks * TOKENS, "%d rows of %d ranks", s.rows, s.ranks);
}

static void *joiner(void *arg)
{
	static const int owners[LAYER_EXPERTS] = { 0, 1, 2 };
	const struct growth *growth = arg;
	struct covey_group *group = join_late(growth->config, GROWN - 1);
	struct covey_result res;
	struct covey_view view;
	struct layer l;

	must(!covey_view(group, &view) && view.size == GROWN - 1 && view.epoch && !view.active, "size %d, epoch %u",
	     view.size, view.epoch);
	must(covey_mask_count(&view.members) == GROWN - 1 && !covey_mask_has(&view.members, GROWN - 1), "members");
	sizes_of_the_most(group, view.max_ranks);
	layer_create(&l, group, growth->preset, TOKENS, HIDDEN, growth->named ? owners : NULL);
	must(!covey_admit(group, NULL, 0, &res) && res.size == GROWN, "admit: size %d", res.size);
	must(covey_ep_rows(l.ep) == GROWN * TOKENS, "%d rows", covey_ep_rows(l.ep));
	must(covey_ep_local_experts(l.ep) == 1, "%d experts", covey_ep_local_experts(l.ep));
	layer_buffers(&l);
	for (int i = 0; i < ROUNDS; i++)
		layer_pair(&l, i, GROWN);
	layer_close(&l);
	must(!covey_leave(group, 0), "leave");
	covey_close(group);
	return NULL;
}

static void elder(struct member *m)
{
	const struct growth *growth = m->arg;
	struct covey_result res;
	pthread_t late;
	struct layer l;

	layer_open(&l, m->group, growth->preset, TOKENS, HIDDEN);
	layer_pair(&l, 7, GROWN - 1);
	if (m->rank == 0)
		must(!pthread_create(&late, NULL, joiner, m->arg), "a thread");
	for (;;) {
		must(!covey_admit(m->group, NULL, 0, &res), "admit");
		if (res.size == GROWN)
			break;
		must(!covey_barrier(m->group, NULL, NULL), "barrier");
	}
	must(layer_send(&l, 0) == COVEY_ERR_STALE, "laid out for less");
	must(!covey_ep_remap(l.ep, NULL), "remap");
	for (int i = 0; i < ROUNDS; i++)
		layer_pair(&l, i, GROWN);
	layer_close(&l);
	if (m->rank == 0)
		pthread_join(late, NULL);
}

TEST_LOOP(a_joiner_is_laid_out_for_the_group_that_lets_it_in, 0, 4)
{
	struct growth growth = { harness_config("epjoin", GROWN - 1), _i / 2, _i % 2 };

	growth.config.max_ranks = ROOM;
	harness_threads(&growth.config, elder, &growth);
}

/* An owner that is no rank of the group is found when its size is known. */
static void *stray(void *arg)
{
	struct covey_group *group = join_late(*(const struct covey_config *)arg, 1);
	int owners[LAYER_EXPERTS] = { ROOM - 1 };
	struct covey_ep_config c = ep_config(1, 8, 1, LAYER_EXPERTS);
	struct covey_error_info why;
	struct covey_ep *none = NULL;
	struct layer l;

	layer_create(&l, group, COVEY_EP_LL, TOKENS, HIDDEN, owners);
	must(!covey_admit(group, NULL, 0, NULL), "admit");
	must(covey_ep_rows(l.ep) == COVEY_ERR_INVAL && covey_ep_local_experts(l.ep) == COVEY_ERR_INVAL, "rows");
	covey_last_error(group, &why);
	must(strstr(why.cause, "expert_owner[0] is 7") && strstr(why.cause, "0 to 1"), "%s", why.cause);
	must(!covey_ep_remap(l.ep, NULL) && covey_ep_rows(l.ep) == 2 * TOKENS, "remap");
	c.expert_owner = owners;
	must(covey_ep_create(group, &c, &none) == COVEY_ERR_INVAL && !none, "create");
	layer_close(&l);
	must(!covey_leave(group, 0), "leave");
	covey_close(group);
	return NULL;
}

static void with_a_stray(struct member *m)
{
	struct covey_result res = { .size = 0 };
	pthread_t late;

	must(!pthread_create(&late, NULL, stray, m->arg), "a thread");
	while (res.size < 2)
		must(!covey_admit(m->group, NULL, 0, &res), "admit");
	pthread_join(late, NULL);
}

TEST(owners_that_do_not_fit_are_found_when_the_joiner_is_let_in)
{
	struct covey_config config = harness_config("epstray", 1);

	config.max_ranks = ROOM;
	harness_threads(&config, with_a_stray, &config);
}

HARNESS_MAIN(.name = "collectives/ep_joiner")
