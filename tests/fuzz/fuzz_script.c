/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The script of the store, run by liblua, with a hash that somebody else may have written and arguments
 * that no member would send. Lines: `FIELD VALUE` pokes the hash, `!TYPE` makes the key another type,
 * `+MS` lets time pass, `@NAME` restarts the server under another name, and `>CALL ARG...` is a call.
 *
 * The script may refuse, but it answers: an error that Lua raises would be no reply for a member, and a
 * loop whose length a caller or the hash chooses would stop the store for every group.
 */
#include "fuzz.h"
#include "store_memory.h"

#define WORDS 256
#define LINES 2048    /* of the script */
#define STEPS 1000000 /* instructions of Lua that one call may take here */

/* libFuzzer looks here too: it would not see which lines of Lua an input reaches. */
__attribute__((section("__libfuzzer_extra_counters"))) static uint8_t reached[LINES];

/* What Lua has not collected yet is no leak; looking for one after every input would take all the time. */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
	return 1;
}

static void call(struct memory_server *server, char *line)
{
	const char *argv[WORDS];
	struct memory_reply reply = { 0 };
	int argc = fuzz_split(line, " ", argv, WORDS);
	int err = memory_server_call(server, "f", argc, argv, &reply);

	if (err)
		fprintf(stderr, "the script failed: %s\n", reply.argv[0]);
	fuzz_check(!err && reply.argc >= 1 && reply.argc % 2 == 1);
	memory_reply_clear(&reply);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct memory_server *server; /* one for all inputs: the script is compiled once */
	char *text = fuzz_text(data, size), *rest = text, *line;
	uint64_t now = 1000000;

	if (!server) {
		server = memory_server_new("run", "repl");
		memory_server_watch(server, STEPS, reached, LINES);
	}
	memory_server_flush(server);
	memory_server_names(server, "run", "repl");
	memory_server_time(server, now);
	while ((line = strsep(&rest, "\n"))) {
		char *value = strchr(line, ' ');

		if (*line == '>') {
			call(server, line + 1);
		} else if (*line == '!') {
			memory_server_retype(server, "f", line + 1);
		} else if (*line == '+') {
			memory_server_time(server, now += strtoul(line + 1, NULL, 10) % 1000000);
		} else if (*line == '@') {
			memory_server_names(server, line + 1, "repl");
		} else if (value) {
			*value++ = 0;
			memory_server_poke(server, "f", line, value);
		}
	}
	free(text);
	return 0;
}
