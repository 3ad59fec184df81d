/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A test program: TEST(name) { ... } is a test, in the order of the file, and SUITE_MAIN(.name = "layer/noun") its end. Where
 * more must be done first, it has a main() that calls suite_run().
 */
#ifndef TESTS_SUITE_H
#define TESTS_SUITE_H

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define SUITE_TESTS 100

struct suite {
	const char *name;
	void (*setup)(void), (*teardown)(void); /* NULL: none */
	int timeout_s;				/* 0: as CTest says, or 60 */
	struct {
		const TTest *test;
		int from, to;
	} test[SUITE_TESTS];
	int tests;
};

static inline struct suite *suite_tests(void)
{
	static struct suite tests;

	return &tests;
}

static inline void suite_add(const TTest *test, int from, int to)
{
	struct suite *all = suite_tests();

	if (all->tests == SUITE_TESTS)
		abort();
	all->test[all->tests].test = test;
	all->test[all->tests].from = from;
	all->test[all->tests++].to = to;
}

/* @_i is FROM, then each number below TO. */
#define TEST_LOOP(NAME, FROM, TO) \
	static const TTest *NAME; \
	__attribute__((constructor)) static void NAME##_add(void) \
	{ \
		suite_add(NAME, FROM, TO); \
	} \
	START_TEST(NAME)
#define TEST(NAME) TEST_LOOP(NAME, 0, 1)

#define SUITE(...) suite_made(&(const struct suite){ __VA_ARGS__ })

/* A case for each test, so that CK_RUN_CASE=NAME runs one. */
static inline Suite *suite_made(const struct suite *how)
{
	const struct suite *all = suite_tests();
	Suite *suite = suite_create(how->name);

	for (int i = 0; i < all->tests; i++) {
		TCase *tc = tcase_create(all->test[i].test->name);

		suite_add_tcase(suite, tc);
		if (how->setup || how->teardown)
			tcase_add_checked_fixture(tc, how->setup, how->teardown);
		if (how->timeout_s || !getenv("CK_DEFAULT_TIMEOUT"))
			tcase_set_timeout(tc, how->timeout_s ? how->timeout_s : 60);
		tcase_add_loop_test(tc, all->test[i].test, all->test[i].from, all->test[i].to);
	}
	return suite;
}

static inline int suite_run(Suite *suite)
{
	SRunner *runner = srunner_create(suite);
	int failed;

	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner) || !srunner_ntests_run(runner);
	srunner_free(runner);
	return failed;
}

#define SUITE_MAIN(...) \
	int main(void) \
	{ \
		return suite_run(SUITE(__VA_ARGS__)); \
	}

#endif
