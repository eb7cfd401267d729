#!/bin/bash
# test-native.sh [SECONDS]
#
# Builds the tests of connector/native with each sanitizer that the compiler has, and
# runs them: the copier under threads, the rules of CUDA with a fake driver, and
# SECONDS (default 2) of mutated frames. A passed program prints one line. Needs a C
# compiler; without one the script says so and succeeds.
set -euo pipefail

cd "$(dirname "$0")/../connector/native"

cc=${CC:-cc}
if ! command -v "$cc" >/dev/null; then
	echo "skip  the connector's data plane in C: no C compiler ($cc)"
	exit 0
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
flags=(-std=c11 -g -O1 -fno-omit-frame-pointer -Wall -Wextra -Werror -pthread)
status=0

# sanitizer FLAG tells whether programs can be built and run with the flag.
sanitizer() {
	echo 'int main(void) { return 0; }' >"$scratch/empty.c"
	"$cc" "$1" -o "$scratch/empty" "$scratch/empty.c" 2>/dev/null && "$scratch/empty" 2>/dev/null
}

for name in address,undefined thread; do
	if ! sanitizer "-fsanitize=$name"; then
		echo "skip  connector/native: $cc has no -fsanitize=$name"
		continue
	fi
	with=("${flags[@]}" "-fsanitize=$name" -fno-sanitize-recover=all)
	# TSan does not know fences; the loads beside them have their own order.
	[ "$name" = thread ] && with+=(-Wno-tsan)
	mkdir -p "$scratch/$name"
	for source in *.c; do
		"$cc" "${with[@]}" -c -o "$scratch/$name/${source%.c}.o" "$source" &
	done
	wait
	"$cc" "${with[@]}" -fPIC -shared -o "$scratch/libcuda.so.1" tests/fake*.c
	for program in test_copier test_pump fuzz_frames test_cuda; do
		link=(-ldl) argument=${1:-2}
		if [ "$program" = test_cuda ]; then
			link+=("-L$scratch" -l:libcuda.so.1 "-Wl,-rpath,$scratch")
			argument=$scratch/libcuda.so.1
		fi
		"$cc" "${with[@]}" -o "$scratch/$program" "tests/$program.c" "$scratch/$name"/*.o "${link[@]}"
		if timeout 120 "$scratch/$program" "$argument" >"$scratch/output" 2>&1; then
			echo "ok    $(tail -1 "$scratch/output") (-fsanitize=$name)"
		else
			echo "FAIL  $program with -fsanitize=$name"
			cat "$scratch/output"
			status=1
		fi
	done
done
exit $status
