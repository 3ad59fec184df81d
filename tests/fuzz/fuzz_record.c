/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the store says, as words separated by `|`: the first is the status of a reply, pairs follow.
 * A view that is made of it is one that can be run: every member has an incarnation and a place.
 */
#include "fuzz.h"
#include "record.h"

#define WORDS 4096

static void check_view(const struct cvy_view *v)
{
	fuzz_check(v->max_ranks >= 1 && v->max_ranks <= COVEY_MAX_RANKS && v->size >= 0 && v->size <= v->max_ranks);
	for (int r = 0; r < COVEY_MAX_RANKS; r++) {
		int member = covey_mask_has(&v->members, r);

		fuzz_check(r < v->max_ranks || !member);
		fuzz_check(!covey_mask_has(&v->pending, r) || member);
		if (member)
			fuzz_check(v->member[r].inc);
	}
	fuzz_check(!v->fail_seq || v->fail_err);
}

static void look(const struct cvy_record *record)
{
	char addr[256], host[128];
	struct cvy_joiner joiner;
	struct covey_mask mask;

	for (int i = 0; i < record->count; i++) {
		const char *value = record->pair[i].value;

		fuzz_check(cvy_record_rank(record, i, 'm', 64) < 64);
		cvy_joiner_parse(value, &joiner);
		cvy_ranks_parse(value, &mask);
		cvy_vid(value);
		if (!cvy_member_place(value, addr, sizeof(addr), host, sizeof(host)))
			fuzz_check(*addr && *host);
	}
	cvy_record_number(record, "rev");
	cvy_record_at(record, 'l', cvy_record_number(record, "epoch"));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *argv[WORDS];
	struct cvy_record record = { 0 }, copy = { 0 }, news = { 0 };
	char *text = fuzz_text(data, size);
	struct cvy_view *view = NULL;
	int argc = fuzz_split(text, "|", argv, WORDS);

	cvy_reply_get(argc, argv, "gid");
	if (!cvy_record_take(&record, argc, argv) && !cvy_record_news(&news, argc, argv)) {
		look(&record);
		look(&news);
		if (!cvy_record_view(&record, &view))
			check_view(view);
		cvy_view_free(view);
		cvy_record_set(&record, "epoch", "7");
		if (!cvy_record_copy(&copy, &record))
			cvy_record_activate(&copy);
	}
	cvy_record_clear(&record);
	cvy_record_clear(&copy);
	cvy_record_clear(&news);
	free(text);
	return 0;
}
