# SPDX-License-Identifier: Apache-2.0
#
# cmake -DIN=store.lua -DOUT=store_lua.c -P embed.cmake: the text of the script as a C array of bytes
# (a string literal would be longer than C promises to take) and its SHA-1, by which Redis knows it.
file(READ ${IN} bytes HEX)
file(SHA1 ${IN} sha1)
string(REGEX REPLACE "(................................)" "\\1\n\t" bytes "${bytes}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE ${OUT} "/* Made from store.lua by embed.cmake. */
extern const char cvy_store_lua[];
extern const char cvy_store_sha1[];
const char cvy_store_lua[] = {\n\t${bytes}0x00\n};
const char cvy_store_sha1[] = \"${sha1}\";
")
