/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a test program's main(). */
#ifndef TESTS_SUITE_H
#define TESTS_SUITE_H

#include <check.h>

static inline int suite_run(Suite *suite)
{
	SRunner *runner = srunner_create(suite);
	int failed;

	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner) || !srunner_ntests_run(runner);
	srunner_free(runner);
	return failed;
}

#endif
