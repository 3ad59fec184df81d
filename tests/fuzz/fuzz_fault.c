/* SPDX-License-Identifier: Apache-2.0 */
/* Fault plans (COVEY_FAULT): they are read, and the operations they name are counted. Nothing is struck here. */
#include "error.h"
#include "fault.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const ops[] = { "allreduce", "dispatch", "allreduce", "" };
	char *plan = fuzz_text(data, size);
	struct covey_error_info info;
	struct cvy_fault *fault = NULL;
	int err = cvy_fault_open(plan, NULL, &fault);

	if (err) {
		cvy_errbox_get(NULL, &info);
		fuzz_check(!fault && err == COVEY_ERR_INVAL && info.err == err && info.cause[0]);
	}
	for (uint64_t i = 0; fault && i < sizeof(ops) / sizeof(ops[0]); i++)
		cvy_fault_op(fault, i, ops[i]);
	cvy_fault_close(fault);
	free(plan);
	return 0;
}
