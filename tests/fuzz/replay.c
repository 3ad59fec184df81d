/* SPDX-License-Identifier: Apache-2.0 */
/* replay FILE|FOLDER... - gives files to a fuzz target without libFuzzer, so that any compiler can run a corpus. */
#include <dirent.h>
#include <sys/stat.h>

#include "fuzz.h"

static int count;

static int replay_file(const char *path)
{
	FILE *file = fopen(path, "rb");
	uint8_t *data;
	struct stat st;
	size_t size;

	if (!file || fstat(fileno(file), &st)) {
		perror(path);
		if (file)
			fclose(file);
		return 1;
	}
	data = malloc((size_t)st.st_size + 1); /* of its own size: a read past the end is seen by the sanitizer */
	fuzz_check(data);
	size = fread(data, 1, (size_t)st.st_size, file);
	fclose(file);
	fprintf(stderr, "%s\n", path); /* the last one named is the one that crashed */
	LLVMFuzzerTestOneInput(data, size);
	free(data);
	count++;
	return 0;
}

static int named(const struct dirent *entry)
{
	return entry->d_name[0] != '.';
}

static int replay(const char *path)
{
	struct dirent **entry;
	int n = scandir(path, &entry, named, alphasort), bad = 0;

	if (n < 0)
		return replay_file(path);
	for (int i = 0; i < n; i++) {
		char file[4096];

		snprintf(file, sizeof(file), "%s/%s", path, entry[i]->d_name);
		bad |= replay_file(file);
		free(entry[i]);
	}
	free(entry);
	return bad;
}

int main(int argc, char **argv)
{
	int bad = 0;

	for (int i = 1; i < argc; i++)
		bad |= replay(argv[i]);
	printf("%d inputs replayed\n", count);
	return bad || !count;
}
