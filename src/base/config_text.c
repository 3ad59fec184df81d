/* SPDX-License-Identifier: Apache-2.0 */
/* Settings as text: those that all ranks compare, and the tables of the manual. */
#include <stdlib.h>
#include <string.h>

#include "config_table.h"

#ifndef COVEY_DEVICE_RANKS
#define COVEY_DEVICE_RANKS 32 /* as src/kernels/layout/ranks.h, which is above this layer */
#endif

static void print_alike(FILE *file, const struct cvy_config *c, enum setting s)
{
	const char *value = (const char *)c + cvy_rows[s].to;

	fprintf(file, "%s=", cvy_rows[s].name);
	if (cvy_rows[s].type == TYPE_STR)
		fprintf(file, "%s", **(char *const *)value ? *(char *const *)value : "none");
	else if (cvy_rows[s].type == TYPE_SIZE)
		fprintf(file, "%zu", *(const size_t *)value);
	else if (cvy_rows[s].type == TYPE_ENUM)
		fprintf(file, "%s", cvy_bounds[s].names[*(const int *)value - cvy_bounds[s].min]);
	else
		fprintf(file, "%d", *(const int *)value);
}

char *cvy_config_alike(const struct cvy_config *c, int founder)
{
	char *text = NULL;
	size_t bytes = 0;
	FILE *file = open_memstream(&text, &bytes);
	int bad;

	if (!file)
		return NULL;
#define PRINT(field) \
	print_alike(file, c, SET_##field); \
	fputc(' ', file);
	CVY_ALIKE_LIST(PRINT)
#undef PRINT
	fprintf(file, "secret_file=%s", *c->secret_file ? "set" : "none");
	if (*c->device && strcmp(c->device, "none") != 0)
		fprintf(file, " device_ranks=%d", COVEY_DEVICE_RANKS);
	if (founder) {
		fputc(' ', file);
		print_alike(file, c, SET_max_ranks);
	}
	bad = ferror(file);
	if (fclose(file) || bad) {
		free(text);
		return NULL;
	}
	return text;
}

static void manual_row(FILE *file, enum setting s)
{
	const struct row *row = &cvy_rows[s];

	fprintf(file, "| `%s` | `%s` | ", row->name, row->env);
	if (row->type == TYPE_STR)
		fputs(*row->text ? row->text : "none", file);
	else if (row->type == TYPE_ENUM)
		fputs(cvy_bounds[s].names[row->number - cvy_bounds[s].min], file);
	else
		fprintf(file, "%lld", row->number);
	fprintf(file, " | %s |\n", row->meaning);
}

void cvy_config_manual(FILE *file)
{
	fputs("| setting | variable | default | meaning |\n|---|---|---|---|\n", file);
	for (int s = 0; s < SETTINGS_PUBLIC; s++)
		manual_row(file, (enum setting)s);
	fputs("\n| variable | meaning |\n|---|---|\n", file);
#define ENV_ROW(env, meaning) fputs("| `" env "` | " meaning " |\n", file);
	CVY_ENV_LIST(ENV_ROW)
#undef ENV_ROW
}

void cvy_config_limits(FILE *file)
{
	fputs("| setting | must be |\n|---|---|\n", file);
	for (int s = 0; s < SETTINGS_PUBLIC; s++)
		fprintf(file, "| `%s` | %s |\n", cvy_rows[s].name, cvy_bounds[s].right);
	fprintf(file,
		"\nBesides, `world` and `rank` are within `max_ranks`; `hang_ms` is at least twice `heartbeat_ms`; and "
		"`window_bytes` x `max_ranks` is at most %llu bytes of addresses.\n",
		CVY_RESERVE_MAX);
}

void cvy_tool_manual(FILE *file)
{
	fputs("| variable | meaning |\n|---|---|\n", file);
#define ENV_ROW(env, meaning) fputs("| `" env "` | " meaning " |\n", file);
	CVY_TOOL_ENV_LIST(ENV_ROW)
#undef ENV_ROW
}

void cvy_launcher_manual(FILE *file)
{
	fputs("| launcher | rank | world |\n|---|---|---|\n", file);
#define LAUNCHER_ROW(rank, world, both, meaning) fputs("| " meaning " | `" rank "` | `" world "` |\n", file);
	CVY_LAUNCHER_LIST(LAUNCHER_ROW)
#undef LAUNCHER_ROW
}

void cvy_job_manual(FILE *file)
{
	fputs("| launcher | identity of the job |\n|---|---|\n| ep-run | `COVEY_JOB`, made for every run |\n", file);
#define JOB_ROW(world, first, second, meaning) \
	fprintf(file, "| " meaning " | `" first "`%s%s%s |\n", *second ? " and `" : "", second, *second ? "`" : "");
	CVY_JOB_LIST(JOB_ROW)
#undef JOB_ROW
	fputs("\nCompared when a process joins: `world`, `job`, `max_ranks` (of those that form the group), "
	      "`secret_file` (set or not), `device_ranks` (of the build, with a device)",
	      file);
#define ALIKE_ROW(field) \
	if (SET_##field < SETTINGS_PUBLIC) \
		fputs(", `" #field "`", file);
	CVY_ALIKE_LIST(ALIKE_ROW)
#undef ALIKE_ROW
	fputs(".\n", file);
}
