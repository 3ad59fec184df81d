/* SPDX-License-Identifier: Apache-2.0 */
/* URLs of the store: what is accepted names one place, and what is refused is not repeated in the cause. */
#include "fuzz.h"
#include "redis_url.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *url = fuzz_text(data, size);
	struct covey_error_info info;
	struct cvy_redis_url parsed;
	int err = cvy_redis_url_parse(url, &parsed, NULL);

	cvy_errbox_get(NULL, &info);
	if (err) {
		fuzz_check(err == COVEY_ERR_INVAL || err == COVEY_ERR_UNSUPPORTED);
		fuzz_check(info.err == err && info.cause[0]);
	} else {
		fuzz_check(parsed.db >= 0);
	}
	free(url);
	return 0;
}
