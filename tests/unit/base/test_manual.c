/* SPDX-License-Identifier: Apache-2.0 */
/* The manual is printed from the registries: its pages must hold what they say now. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../suite.h"
#include "config.h"
#include "error.h"

static char *slurp(FILE *file)
{
	size_t room = 1 << 20;
	char *text = calloc(1, room + 1);

	ck_assert_ptr_nonnull(text);
	ck_assert_uint_lt(fread(text, 1, room, file), room);
	fclose(file);
	return text;
}

static char *page_of(const char *name)
{
	char path[512];
	FILE *file;

	snprintf(path, sizeof(path), COVEY_SOURCE_DIR "/docs/%s", name);
	file = fopen(path, "r");

	ck_assert_ptr_nonnull(file);
	return slurp(file);
}

static char *printed(void (*print)(FILE *))
{
	FILE *file = tmpfile();

	ck_assert_ptr_nonnull(file);
	print(file);
	rewind(file);
	return slurp(file);
}

static void expect_in(const char *name, void (*print)(FILE *))
{
	char *page = page_of(name), *table = printed(print);

	ck_assert_uint_gt(strlen(table), 100);
	if (!strstr(page, table)) /* too long for a message of check */
		fprintf(stderr, "docs/%s lacks this, which the registry prints:\n%s", name, table);
	ck_assert_msg(strstr(page, table) != NULL, "docs/%s lacks what the registry prints", name);
	free(page);
	free(table);
}

TEST(the_manual_has_the_settings)
{
	expect_in("reference/environment.md", cvy_config_manual);
}

TEST(the_manual_has_the_errors)
{
	expect_in("operate/errors.md", cvy_error_manual);
}

SUITE_MAIN(.name = "base/manual")
