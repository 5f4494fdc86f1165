#!/bin/sh
# dgraft answers: lines in and out, resuming, bad lines; side by side the same texts as one by one.
set -u
. tests/e2e/shell.sh

toy=$tmp/toy
model=$tmp/model
out=$tmp/answers
echo x >"$model"

if ! ${CC:-cc} -std=c11 -D_GNU_SOURCE -I. -O0 -g runtime/main.c runtime/cli*.c tests/e2e/toy_library.c \
    $(pkg-config --cflags --libs jansson) -lm -o "$toy" >"$tmp/log" 2>&1; then
    fail answers_toy_builds "$(tail -5 "$tmp/log")"
    exit 1
fi

# Fields of the output's lines, sorted by id: one line of text each.
fields() {
    python3 -c 'import json, sys
for j in sorted((json.loads(l) for l in open(sys.argv[1])), key=lambda j: j["id"]):
    print(*[json.dumps(j.get(k)) for k in sys.argv[2:]])' "$@"
}

# The same in one line.
row() { fields "$@" | tr '\n' ' ' | sed 's/ $//'; }

test_lines() {
    cat >"$tmp/p" <<'E'
{"id": "a", "prompt": "hi", "source": "greeting"}
{"id": 7, "prompt": [104, 105, 33], "temp": 0.5}

{"prompt": "a third"}
E
    run="$toy answers -m $model --prompts $tmp/p -o $out"
    check answers_run 0 '^3 of 3 answers, 24 tokens' $run -n 8 --sequences 2
    same answers_fields '"7" [104, 105, 33] 0.5 null
"a" [104, 105] 0.0 "greeting"
"line 4" [97, 32, 116, 104, 105, 114, 100] 0.0 null' "$(fields "$out" id prompt temp source)"
    same answers_lengths '8 8 8' "$(row "$out" text | python3 -c 'import sys
print(*[len(t) for t in sys.stdin.read().strip().strip("\"").split("\" \"")])')"
    cp "$out" "$tmp/whole"
    check answers_again 0 'all 3 prompts are answered already' $run -n 8
    holds answers_untouched cmp "$out" "$tmp/whole"
    head -c $(($(wc -c <"$tmp/whole") - 9)) "$tmp/whole" >"$out" # killed in the middle of the last line
    check answers_resumed 0 '^1 of 1 answers' $run -n 8
    same answers_resumed_same "$(fields "$tmp/whole" id answer text)" "$(fields "$out" id answer text)"
    rm "$out"
    check answers_ended 0 '^3 of 3 answers, 183 tokens' $run
    same answers_end_by_themselves '256 256 256' "$(fields "$out" answer | python3 -c 'import json, sys
print(*[json.loads(l)[-1] for l in sys.stdin])')"
    rm "$out"
    check answers_temperatures 0 '' $run -n 2 --temp 0.25,1 --seed 4
    same answers_seed_counts 0 "$(grep -c warning "$tmp/err")"
    same answers_temperatures_in_turn '0.5 0.25 1.0' "$(row "$out" temp)"
}

bad() { # name, pattern, line
    printf '%s\n' "$3" >"$tmp/bad"
    check "answers_$1" 1 "$2" "$toy" answers -m "$model" -o "$tmp/none" --prompts "$tmp/bad"
}

# A prompt that does not fit is recorded as such and holds nobody up.
test_too_long() {
    printf '%s\n' '{"id": "a", "prompt": "0123456789"}' '{"id": "b", "prompt": "hi"}' '{"id": "c", "prompt": "ho", "source": "s"}' \
        >"$tmp/p"
    run="$toy answers -m $model --prompts $tmp/p -n 3"
    for lanes in 1 2; do
        check answers_too_long_$lanes 1 '^error: 1 of 3 prompts have more than the 8 tokens of the context' $run -c 8 \
            -o "$tmp/long$lanes" --sequences $lanes
        same answers_too_long_ends_$lanes '"prompt too long" "limit" "limit"' "$(row "$tmp/long$lanes" end)"
    done
    same answers_too_long_is_empty '[] [103, 104, 107] [103, 104, 107]' "$(row "$tmp/long1" answer)"
    check answers_too_long_once 0 'all 3 prompts are answered already' $run -c 8 -o "$tmp/long1"
    python3 -c 'print("{\"prompt\": \"" + "x" * 3000 + "\"}")' >"$tmp/p"
    check answers_too_long_for_the_model 1 'more than the 2048 tokens' $run -o "$tmp/long3"
    same answers_too_long_alone '"prompt too long"' "$(row "$tmp/long3" end)"
}

# -1 is another seed every time; any other the same.
test_seeds() {
    echo '{"prompt": "x", "temp": 1}' >"$tmp/p"
    for i in 1 2; do
        for seed in -1 5; do
            "$toy" answers -m "$model" --prompts "$tmp/p" -n 3 --seed $seed -o "$tmp/seed$seed.$i" 2>"$tmp/err"
        done
        sleep 0.01
    done
    holds answers_seed_repeats cmp "$tmp/seed5.1" "$tmp/seed5.2"
    holds answers_random_seed test "$(sort "$tmp"/seed-1.* | uniq | wc -l)" = 2
}

# Many sessions fill a pass that one could not.
test_batch() {
    echo '{"prompt": "x"}' >"$tmp/p"
    check answers_batch 0 '' "$toy" answers -m "$model" --prompts "$tmp/p" -n 2 -b 2048 -o "$tmp/batch"
    same answers_batch_is_silent 0 "$(grep -c warning "$tmp/err")"
}

test_greedy() {
    echo '{"prompt": "x"}' >"$tmp/p"
    run="$toy answers -m $model --prompts $tmp/p -n 2 --seed 4"
    check answers_greedy_seed 0 '^warning: --seed changes nothing' $run -o "$tmp/greedy"
    echo '{"prompt": "x", "temp": 1}' >"$tmp/p"
    check answers_own_temp 0 '' $run -o "$tmp/sampled"
    same answers_own_temp_is_silent 0 "$(grep -c warning "$tmp/err")"
}

test_bad_lines() {
    check answers_no_prompts 2 'with --prompts FILE' "$toy" answers -m "$model" -o "$tmp/none"
    bad not_json 'bad:1: ' '{"prompt"'
    bad not_an_object 'bad:1: expected a JSON object' '[1]'
    bad no_prompt "'prompt': expected a text or a list" '{"id": 1}'
    bad id_out_of_range "'prompt': expected token ids" '{"prompt": [999]}'
    bad empty_list 'at least one token' '{"prompt": []}'
    bad bad_temp "'temp': expected a number" '{"prompt": "x", "temp": -1}'
    bad twice "bad:3: expected ids that differ, found 'a', which line 1 has" '{"id": "a", "prompt": "x"}
{"id": "b", "prompt": "x"}
{"id": "a", "prompt": "y"}'
    bad twice_by_number "bad:2: expected ids that differ, found '7', which line 1 has" '{"id": 7, "prompt": "x"}
{"id": "7", "prompt": "y"}'
    bad nothing 'expected at least one line' ''
    echo '{"prompt": "x"}' >"$tmp/bad"
    run="$toy answers -m $model --prompts $tmp/bad"
    check answers_unwritable 1 'cannot be written' $run -o /nonexistent/x
    echo text >"$tmp/other"
    check answers_onto_another_file 1 'expected an answer of an earlier run' $run -o "$tmp/other"
}

# Texts do not depend on how many run side by side.
test_real() {
    dgraft=$BUILD/dgraft
    have_golden answers_real || return
    target=$GOLDEN/dflash/target-qwen3
    i=0
    while [ $i -lt 11 ]; do
        i=$((i + 1))
        echo "{\"id\": $i, \"prompt\": [$((i * 17)), $((i + 40)), 103$([ $((i % 2)) = 0 ] && echo ', 241, 168')]}"
    done >"$tmp/p"
    for n in 1 4 16; do
        check "answers_side_by_side_$n" 0 '^11 of 11' "$dgraft" answers -m "$target" --prompts "$tmp/p" \
            -o "$tmp/real$n" -n 30 --sequences $n --temp 0,0.9 --seed 3
    done
    same answers_equal_4 "$(fields "$tmp/real1" id answer)" "$(fields "$tmp/real4" id answer)"
    same answers_equal_16 "$(fields "$tmp/real1" id answer)" "$(fields "$tmp/real16" id answer)"
    check answers_loops 0 '' "$dgraft" answers -m "$target" --prompts "$tmp/p" -o "$tmp/loops" -n 120 --stop-loops
    holds answers_some_looped grep -q '"end":"loop"' "$tmp/loops"
    holds answers_loop_rule python3 -c 'import collections, json, sys
for line in open(sys.argv[1]):
    j = json.loads(line)
    a = j["answer"]
    grams = collections.Counter(tuple(a[i:i + 4]) for i in range(len(a) - 3))
    assert (max(grams.values(), default=0) >= 5) == (j["end"] == "loop"), j' "$tmp/loops"
}

test_lines
test_too_long
test_seeds
test_batch
test_greedy
test_bad_lines
test_real
exit $failures
