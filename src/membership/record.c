/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records of the store: strings in, views out. No data of a store is trusted: every number is parsed to its end, every
 * rank is checked against `max`.
 */
#include "record.h"
#include "hash.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#define PAIRS_MAX 65536 /* more than 4096 ranks with all their fields */

static const char *const record_fields[] = { "proto", "gid", "secret", "max",  "policy", "world", "incs",
					     "epoch", "vid", "base",   "fail", "stamp",	 "size" };

static int begins(const char *text, const char *prefix)
{
	return strncmp(text, prefix, strlen(prefix)) == 0;
}

static int belongs(const char *field)
{
	if (field[0] && field[1] == ':')
		return strchr("moulew", field[0]) != NULL;
	for (size_t i = 0; i < sizeof(record_fields) / sizeof(record_fields[0]); i++)
		if (strcmp(field, record_fields[i]) == 0)
			return 1;
	return 0;
}

/* Both strings of a pair, in one block that copies of a record share: large groups have thousands of pairs. */
struct text {
	int refs;
	char bytes[];
};

static struct text *text_of(const struct cvy_field *p)
{
	return (struct text *)(void *)(p->field - offsetof(struct text, bytes));
}

int cvy_field_make(struct cvy_field *p, const char *field, const char *value)
{
	size_t n = strlen(field) + 1, m = strlen(value) + 1;
	struct text *text = malloc(sizeof(*text) + n + m);

	if (!text)
		return COVEY_ERR_NOMEM;
	text->refs = 1;
	p->field = memcpy(text->bytes, field, n);
	p->value = memcpy(text->bytes + n, value, m);
	return 0;
}

void cvy_field_share(struct cvy_field *to, const struct cvy_field *from)
{
	text_of(from)->refs++;
	*to = *from;
}

void cvy_field_drop(struct cvy_field *p)
{
	if (p->field && !--text_of(p)->refs)
		free(text_of(p));
	p->field = p->value = NULL;
}

void cvy_record_clear(struct cvy_record *record)
{
	for (int i = 0; i < record->count; i++)
		cvy_field_drop(&record->pair[i]);
	free(record->pair);
	memset(record, 0, sizeof(*record));
}

static struct cvy_field *find(const struct cvy_record *record, const char *field)
{
	for (int i = 0; i < record->count; i++)
		if (strcmp(record->pair[i].field, field) == 0)
			return &record->pair[i];
	return NULL;
}

/* Room for @more pairs, asked for at once: with 4096 members, doubling wastes 100 KiB. */
static int make_room(struct cvy_record *record, int more)
{
	int room = record->count + more;
	struct cvy_field *pair;

	if (room <= record->room)
		return 0;
	if (room > PAIRS_MAX)
		return COVEY_ERR_NOMEM;
	pair = realloc(record->pair, (size_t)room * sizeof(*pair));
	if (!pair)
		return COVEY_ERR_NOMEM;
	record->pair = pair;
	record->room = room;
	return 0;
}

static int one_more(struct cvy_record *record)
{
	int more = record->count < 32 ? 32 : record->count;

	if (record->count < record->room)
		return 0;
	return make_room(record, record->count + more > PAIRS_MAX ? PAIRS_MAX - record->count : more) ||
			       record->count == record->room
		       ? COVEY_ERR_NOMEM
		       : 0;
}

static int append(struct cvy_record *record, const char *field, const char *value)
{
	if (one_more(record) || cvy_field_make(&record->pair[record->count], field, value))
		return COVEY_ERR_NOMEM;
	record->count++;
	return 0;
}

/* Appends a pair of another record, which shares its strings. */
static int share(struct cvy_record *record, const struct cvy_field *p)
{
	if (one_more(record))
		return COVEY_ERR_NOMEM;
	cvy_field_share(&record->pair[record->count++], p);
	return 0;
}

int cvy_record_set(struct cvy_record *record, const char *field, const char *value)
{
	struct cvy_field *p = find(record, field), made;

	if (!p)
		return append(record, field, value);
	if (cvy_field_make(&made, field, value))
		return COVEY_ERR_NOMEM;
	cvy_field_drop(p);
	*p = made;
	return 0;
}

int cvy_record_copy(struct cvy_record *to, const struct cvy_record *from)
{
	int err;

	cvy_record_clear(to);
	err = make_room(to, from->count);
	for (int i = 0; i < from->count && !err; i++)
		err = share(to, &from->pair[i]);
	return err;
}

int cvy_record_take(struct cvy_record *record, int argc, const char *const *argv)
{
	if (make_room(record, argc / 2))
		return COVEY_ERR_NOMEM;
	for (int i = 1; i + 1 < argc; i += 2)
		if (belongs(argv[i]) && append(record, argv[i], argv[i + 1]))
			return COVEY_ERR_NOMEM;
	return 0;
}

static int is_news(const char *field)
{
	return field[0] && field[1] == ':' && strchr("jew", field[0]);
}

/* `j:3,w:5`: is @field one of them? */
static int listed(const char *list, const char *field)
{
	size_t n = strlen(field);

	for (const char *at = strstr(list, field); at; at = strstr(at + 1, field))
		if ((at == list || at[-1] == ',') && (at[n] == '\0' || at[n] == ','))
			return 1;
	return 0;
}

int cvy_record_news(struct cvy_record *record, int argc, const char *const *argv)
{
	const char *gone = cvy_reply_get(argc, argv, "gone");

	if (!gone)
		cvy_record_clear(record);
	for (int i = record->count - 1; gone && i >= 0; i--) /* the last pair, already checked, fills the place */
		if (listed(gone, record->pair[i].field)) {
			cvy_field_drop(&record->pair[i]);
			record->pair[i] = record->pair[--record->count];
		}
	for (int i = 1; i + 1 < argc && argv[i + 1]; i += 2)
		if (is_news(argv[i]) &&
		    (gone ? cvy_record_set(record, argv[i], argv[i + 1]) : append(record, argv[i], argv[i + 1])))
			return COVEY_ERR_NOMEM;
	return 0;
}

const char *cvy_record_get(const struct cvy_record *record, const char *field)
{
	const struct cvy_field *p = find(record, field);

	return p ? p->value : NULL;
}

static int number(const char *text, uint64_t *out)
{
	char *end;

	if (!text || *text < '0' || *text > '9')
		return COVEY_ERR_INVAL;
	errno = 0;
	*out = strtoull(text, &end, 10);
	return errno || *end ? COVEY_ERR_INVAL : 0;
}

uint64_t cvy_record_number(const struct cvy_record *record, const char *field)
{
	uint64_t n = 0;

	return number(cvy_record_get(record, field), &n) ? 0 : n;
}

const char *cvy_record_at(const struct cvy_record *record, char letter, uint64_t n)
{
	char field[32];

	snprintf(field, sizeof(field), "%c:%" PRIu64, letter, n);
	return cvy_record_get(record, field);
}

int cvy_record_rank(const struct cvy_record *record, int i, char letter, int max_ranks)
{
	const char *field = record->pair[i].field;
	uint64_t rank;

	if (field[0] != letter || field[1] != ':' || number(field + 2, &rank) || rank >= (uint64_t)max_ranks)
		return -1;
	return (int)rank;
}

const char *cvy_reply_get(int argc, const char *const *argv, const char *field)
{
	for (int i = 1; i + 1 < argc; i += 2)
		if (strcmp(argv[i], field) == 0)
			return argv[i + 1];
	return NULL;
}

uint64_t cvy_vid(const char *text)
{
	return text ? strtoull(text, NULL, 16) : 0;
}

int cvy_ranks_parse(const char *text, struct covey_mask *mask)
{
	memset(mask, 0, sizeof(*mask));
	if (!text || strcmp(text, "-") == 0)
		return 0;
	while (*text) {
		char *end;
		unsigned long rank = strtoul(text, &end, 10);

		if (end == text || rank >= COVEY_MAX_RANKS || (*end && *end != ','))
			return COVEY_ERR_INVAL;
		cvy_mask_add(mask, (int)rank);
		text = *end ? end + 1 : end;
	}
	return 0;
}

/*
 * Copies the next word and moves past it; 0: none, or it does not fit. Fast, since large groups parse thousands of
 * them.
 */
static int word(const char **at, char *to, size_t bytes)
{
	size_t n;

	*at += strspn(*at, " ");
	n = strcspn(*at, " ");
	if (!n || n >= bytes)
		return 0;
	memcpy(to, *at, n);
	to[n] = '\0';
	*at += n;
	return 1;
}

static int number_word(const char **at, uint64_t *out)
{
	char text[32];

	return word(at, text, sizeof(text)) && !number(text, out);
}

int cvy_joiner_parse(const char *text, struct cvy_joiner *j)
{
	char nonce[64];

	memset(j, 0, sizeof(*j));
	if (!number_word(&text, &j->inc) || !word(&text, nonce, sizeof(nonce)) ||
	    !word(&text, j->addr, sizeof(j->addr)) || !word(&text, j->host, sizeof(j->host)) ||
	    !number_word(&text, &j->epoch))
		return COVEY_ERR_INVAL;
	return j->inc ? 0 : COVEY_ERR_INVAL;
}

static int member_parse(const char *text, struct cvy_member *member)
{
	char from[32];
	uint64_t seq = CVY_PENDING;
	const char *place;

	if (!number_word(&text, &member->inc) || !word(&text, from, sizeof(from)) || !member->inc)
		return COVEY_ERR_INVAL;
	if (strcmp(from, "-") != 0 && number(from, &seq))
		return COVEY_ERR_INVAL;
	member->from = seq;
	place = strchr(*text == ' ' ? text + 1 : text, ' '); /* behind the address */
	member->host = cvy_hash_text(place ? place : "");
	return 0;
}

int cvy_member_place(const char *text, char *addr, size_t addr_bytes, char *host, size_t host_bytes)
{
	char inc[32], from[32];

	if (!word(&text, inc, sizeof(inc)) || !word(&text, from, sizeof(from)) || !word(&text, addr, addr_bytes) ||
	    !word(&text, host, host_bytes))
		return COVEY_ERR_INVAL;
	return 0;
}

static int fail_parse(const char *text, struct cvy_view *v)
{
	char kind[16];

	if (!text || strcmp(text, "0") == 0)
		return 0;
	if (sscanf(text, "%" SCNu64 " %15s", &v->fail_seq, kind) != 2)
		return COVEY_ERR_INVAL;
	v->fail_err = strcmp(kind, "MISMATCH") == 0 ? COVEY_ERR_MISMATCH : COVEY_ERR_LOST;
	return 0;
}

static int members_parse(const struct cvy_record *record, struct cvy_view *v)
{
	for (int i = 0; i < record->count; i++) {
		int rank = cvy_record_rank(record, i, 'm', v->max_ranks);

		if (rank < 0 && begins(record->pair[i].field, "m:"))
			return COVEY_ERR_INVAL;
		if (rank < 0)
			continue;
		if (member_parse(record->pair[i].value, &v->member[rank]))
			return COVEY_ERR_INVAL;
		cvy_mask_add(&v->members, rank);
		if (v->member[rank].from == CVY_PENDING)
			cvy_mask_add(&v->pending, rank);
	}
	return 0;
}

int cvy_record_view(const struct cvy_record *record, struct cvy_view **out)
{
	uint64_t max, epoch, base, stamp, size;
	struct cvy_view *v;

	if (number(cvy_record_get(record, "max"), &max) || !max || max > COVEY_MAX_RANKS ||
	    number(cvy_record_get(record, "epoch"), &epoch) || epoch > UINT32_MAX ||
	    number(cvy_record_get(record, "base"), &base) || number(cvy_record_get(record, "stamp"), &stamp) ||
	    stamp > UINT32_MAX || number(cvy_record_get(record, "size"), &size) || size > max ||
	    !cvy_record_get(record, "vid"))
		return COVEY_ERR_INVAL;
	v = cvy_view_new((int)max);
	if (!v)
		return COVEY_ERR_NOMEM;
	v->epoch = (uint32_t)epoch;
	v->stamp = (uint32_t)stamp;
	v->vid = cvy_vid(cvy_record_get(record, "vid"));
	v->base = base;
	v->size = (int)size;
	if (fail_parse(cvy_record_get(record, "fail"), v) || members_parse(record, v)) {
		cvy_view_free(v);
		return COVEY_ERR_INVAL;
	}
	*out = v;
	return 0;
}

/* The o: fields of a record by rank, NULL: none. */
struct voters {
	const struct cvy_field *of[COVEY_MAX_RANKS];
};

static void voters_find(struct voters *voters, const struct cvy_record *record)
{
	memset(voters, 0, sizeof(*voters));
	for (int i = 0; i < record->count; i++) {
		int rank = cvy_record_rank(record, i, 'o', COVEY_MAX_RANKS);

		if (rank >= 0)
			voters->of[rank] = &record->pair[i];
	}
}

/* Appends member @i of @from as a voter, if it is admitted. Most were voters before: the strings are shared. */
static int append_voter(struct cvy_record *record, const struct cvy_record *from, int i, const struct voters *before)
{
	const int rank = cvy_record_rank(from, i, 'm', COVEY_MAX_RANKS);
	struct cvy_member member;
	char voter[32], inc[32];

	if (rank < 0 || member_parse(from->pair[i].value, &member) || member.from == CVY_PENDING)
		return 0;
	snprintf(inc, sizeof(inc), "%" PRIu64, member.inc);
	if (before->of[rank] && strcmp(before->of[rank]->value, inc) == 0)
		return share(record, before->of[rank]);
	snprintf(voter, sizeof(voter), "o:%d", rank);
	return append(record, voter, inc);
}

#define KEEP_EPOCHS 16 /* epochs with an l: field, as in store/view.lua */

/* Is pair @p of the old record part of the new one? */
static int stays(const struct cvy_record *to, const struct cvy_field *p, const struct covey_mask *other, uint64_t epoch)
{
	uint64_t n = 0;

	if (p->field[0] && p->field[1] == ':') {
		if (strchr("ouew", p->field[0]) || number(p->field + 2, &n))
			return 0;
		return p->field[0] == 'l' ? n + KEEP_EPOCHS > epoch : !covey_mask_has(other, (int)n);
	}
	for (int i = 0; i < to->count && to->pair[i].field[1] != ':'; i++)
		if (strcmp(to->pair[i].field, p->field) == 0)
			return 0;
	return 1;
}

int cvy_record_step(struct cvy_record *to, const struct cvy_record *from, int argc, const char *const *argv,
		    const struct cvy_record *news)
{
	uint64_t epoch = 0;
	struct covey_mask other;
	const char *line;
	char removed[32 * 1024] = "";
	struct voters before;
	int err = make_room(to, argc / 2 + from->count + news->count);

	if (!err)
		err = cvy_record_take(to, argc, argv);
	if (err || number(cvy_record_get(to, "epoch"), &epoch) || !(line = cvy_record_at(to, 'l', epoch)) ||
	    sscanf(line, "%*s %32767s", removed) != 1 || cvy_ranks_parse(removed, &other))
		return err ? err : COVEY_ERR_INVAL;
	for (int i = 0; i < to->count; i++) {
		int rank = cvy_record_rank(to, i, 'm', COVEY_MAX_RANKS);

		if (rank >= 0)
			cvy_mask_add(&other, rank);
	}
	voters_find(&before, from);
	for (int i = 0; i < from->count && !err; i++) {
		if (stays(to, &from->pair[i], &other, epoch))
			err = share(to, &from->pair[i]);
		if (!err)
			err = append_voter(to, from, i, &before);
	}
	for (int i = 0; i < news->count && !err; i++)
		if (news->pair[i].field[0] != 'j')
			err = share(to, &news->pair[i]);
	return err;
}

int cvy_record_activate(struct cvy_record *record)
{
	struct cvy_record active = { 0 };
	struct voters before;
	int err = make_room(&active, record->count);

	voters_find(&before, record);
	for (int i = 0; i < record->count && !err; i++) {
		const struct cvy_field *p = &record->pair[i];

		if (!begins(p->field, "u:") && !begins(p->field, "o:"))
			err = share(&active, p);
	}
	for (int i = 0; i < record->count && !err; i++)
		err = append_voter(&active, record, i, &before);
	if (err) {
		cvy_record_clear(&active);
		return err;
	}
	cvy_record_clear(record);
	*record = active;
	return 0;
}
