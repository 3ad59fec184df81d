/* SPDX-License-Identifier: Apache-2.0 */
/* Built without the headers of libmlx5 (tests/CMakeLists.txt links that half): asking for a NIC says what is missing. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "../../suite.h"
#include "queues.h"

TEST(a_build_without_mlx5_says_so)
{
	struct cvy_errbox *box = cvy_errbox_new();
	struct cvy_nic_args args = { .box = box };
	struct covey_error_info info;
	struct cvy_nic *nic = NULL;

	ck_assert_int_eq(cvy_nic_open(&args, &nic), COVEY_ERR_UNSUPPORTED);
	ck_assert_ptr_null(nic);
	cvy_errbox_get(box, &info);
	ck_assert_int_eq(info.err, COVEY_ERR_UNSUPPORTED);
	ck_assert_msg(strstr(info.cause, "built without libibverbs and libmlx5") != NULL, "%s", info.cause);
	cvy_nic_close(NULL);
	cvy_region_close(NULL);
	cvy_pair_close(NULL);
	cvy_errbox_free(box);
}

SUITE_MAIN(.name = "p2p/queues_none")
