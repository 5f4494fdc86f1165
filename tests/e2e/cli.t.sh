#!/bin/sh
# The program. First linked with a toy library (toy_library.c), which needs no model and can go wrong on purpose:
# options, messages, exit statuses, reports. Then the real one on the tiny golden models.
set -u
. tests/e2e/shell.sh

toy=$tmp/toy
model=$tmp/model
echo x >"$model"

build_toy() {
    ${CC:-cc} -std=c11 -D_GNU_SOURCE -I. -O0 -g runtime/main.c runtime/cli*.c tests/e2e/toy_library.c \
        $(pkg-config --cflags --libs jansson) -lm -o "$toy"
}

# The same with line editing, where the library is there.
build_toy_editing() {
    ${CC:-cc} -std=c11 -D_GNU_SOURCE -DDG_LIBEDIT -I. -O0 -g runtime/main.c runtime/cli*.c tests/e2e/toy_library.c \
        $(pkg-config --cflags --libs jansson libedit) -lm -o "$toy-editing"
}

# The first wrong options that come to mind, with what the message must say.
test_usage() {
    run="$toy run -m $model -p hi"
    check no_command 2 'Usage: dgraft COMMAND' "$toy"
    check help 0 '^  verify ' "$toy" --help
    check version 0 '^dgraft 0\.0\.0$' "$toy" --version
    check unknown_command 2 "did you mean 'run'" "$toy" rnu
    check option_before_command 2 'the command comes first' "$toy" -m x
    check unknown_option 2 'did you mean --temp' $run --tmep 1
    check no_option_of_another_command 2 "unknown option --outt .'dgraft run --help' lists" $run --outt x
    check option_of_this_command 2 'did you mean --out\?' "$toy" answers -m "$model" --outt x
    check too_many_threads 2 "expected a whole number from 0 to 256, found '257'" $run -t 257
    check most_threads 0 '' $run -t 256
    check command_bench 2 'dgraft-bench' "$toy" bench
    check command_server 2 'there is no server' "$toy" server --port 80
    check command_tokenize 2 "'dgraft tokens' shows" "$toy" tokenize
    check option_of_another_command 2 'belongs to tokens' $run --ids 1
    check missing_value 2 'expected N, found nothing' $run -n
    check option_as_value 2 'found the option --temp' $run -n --temp
    check positional 2 "unexpected argument 'extra'" $run extra
    check value_for_a_flag 2 'takes no value' $run --chat=1
    check no_model 2 'give the model with -m' "$toy" run -p hi
    check not_a_number 2 "expected a number from 0 to 1, found 'x'" $run --top-p x
    check not_finite 2 "expected numbers from 0 to 100, found 'nan'" $run --temp nan
    check out_of_range 2 "expected a whole number from 0 to 2147483647, found '-1'" $run --top-k -1
    check fraction 2 'expected a whole number' $run -c 1.5
    check zero_tokens 2 'at least 1, found 0' $run -n 0
    check two_temperatures 2 "'dgraft verify' takes several" $run --temp 0,1
    check compute_name 2 'expected default, f32 or int8' $run --compute fast
    check kv_name 2 'expected f16 or f32' $run --kv q8_0
    check system_without_chat 2 'add --chat' $run --system x
    check think_and_not 2 'exclude each other' $run --chat --think --no-think
    check prompt_twice 2 'not both' $run -f x
    check empty_stop 2 'found nothing' $run --stop=
    check underscores_and_equals 0 '^3 tokens' $run --n_predict=3
}

test_refusals() {
    for option in --repeat-penalty --presence-penalty --frequency-penalty --logit-bias --grammar --json-schema \
        --mirostat --mirostat-lr --typical --dry-multiplier --xtc-probability --dynatemp-range --samplers -ngl \
        --gpu-layers --lora --cache-type-k --rope-scale --model-draft --draft-max --mmproj --flash-attn --host --threads-batch --no-warmup; do
        check "refuses_$option" 2 "^error: $option is not supported: ." "$toy" run -m "$model" -p hi "$option" 1
    done
    run="$toy run -m $model -p hi"
    check refuses_logprobs 2 '^error: --logprobs is not supported: write --json' $run --logprobs 5
    check refuses_n_probs 2 '^error: --n-probs is not supported: write --json' $run --n_probs=5
    check refuses_spec_type 2 '^error: --spec-type is not supported: write --draft' $run --spec-type ngram
    check refuses_spec_n_max 2 '^error: --spec-draft-n-max is not supported: write --budget' $run --spec-draft-n-max 4
    check refuses_port 2 '^error: --port is not supported: there is no server' $run --port 80
}

# What is asked for and has no effect is said; what has one is not.
test_no_effect() {
    run="$toy run -m $model -p hi -n 3"
    for option in '--seed 1' '--top-k 40' '--top-p 0.9' '--min-p 0.1'; do
        check "greedy_${option% *}" 0 "^warning: ${option% *} changes nothing: decoding is greedy" $run $option
        check "sampled_${option% *}" 0 '' $run $option --temp 0.5
        same "sampled_${option% *}_is_silent" 0 "$(grep -c warning "$tmp/err")"
    done
    check greedy_filters_off 0 '' $run --top-k 0 --top-p 1 --min-p 0
    same greedy_filters_off_is_silent 0 "$(grep -c warning "$tmp/err")"
    check greedy_verify 0 '^warning: --seed changes nothing' "$toy" verify -m "$model" -p hi --draft toy --temp 0 --seed 1,2
    check no_exact_on_cpu 0 '^warning: --no-exact changes nothing: on the CPU' $run --no-exact
    check budget_without_drafter 0 '^warning: --budget changes nothing: there are no drafters' $run --budget 4
    check calibration_without_drafter 0 '^warning: --calibration changes nothing' $run --calibration x
    check batch_too_large 0 '^warning: -b 2048: taken as 256' "$toy" info -m "$model" -b 2048 --json
    capped=$(json memory workspace)
    check batch_of_256 0 '' "$toy" info -m "$model" -b 256 --json
    same batch_is_capped "$(json memory workspace)" "$capped"
    same batch_of_256_is_silent 0 "$(grep -c warning "$tmp/err")"
    check batch_too_large_run 0 '^warning: -b 257' $run -b 257
    check budget_with_drafter 0 '' $run --budget 4 --draft toy
    same budget_with_drafter_is_silent 0 "$(grep -c warning "$tmp/err")"
}

test_drafts() {
    run="$toy run -m $model -p hi -n 5"
    check draft_none 0 'plain decoding' $run --draft none
    check draft_two 0 'drafters toy\+second' $run --draft toy:a,b/c,differ=1000 --draft second
    check draft_path_with_comma 0 '"path": "a,b/c", "params": "differ=1000"' $run --json \
        --draft toy:a,b/c,differ=1000
    check draft_unknown 2 "did you mean 'toy'" $run --draft tyo
    check draft_empty_path 2 "path after ':' is empty" $run --draft toy:
    check draft_bad_parameter 2 'expected key=value' $run --draft toy,x
    check draft_bare_key 2 "expected key=value after ',', found 'tree' in 'toy:$tmp/none,tree' .*tree=1" $run \
        --draft "toy:$tmp/none,tree"
    check draft_bare_key_of_more 2 "found 'tree'" $run --draft "toy:$tmp/none,tree,differ=4"
    echo x >"$tmp/a,tree"
    check draft_path_like_a_key 0 'a,tree"' $run --json --draft "toy:$tmp/a,tree"
    check draft_none_and_more 2 'stands alone' $run --draft none --draft toy
    check mode_unknown 2 "did you mean 'both'" $run --mode botth
    check mode_without_weights 2 'needs the weights of toy: add --drafter PATH' $run --mode both
    check mode_expands 0 '"path": "p/q", "params": "differ=4"' $run --json --mode both --drafter p/q
    check mode_named_weights 0 '"path": "p/q"' $run --json --mode both --drafter toy:p/q
    check mode_budget 0 '"budget": 12' $run --json --mode both --drafter p
    check mode_budget_overruled 0 '"budget": 7' $run --json --mode both --drafter p --budget 7
    check mode_and_draft 2 'leave out --draft' $run --mode bare --draft toy
    check drafter_without_mode 2 'write --draft NAME:p' $run --drafter p
    check drafter_not_used 2 '^error: --drafter second:/x: --mode both .* no weights to fill in' $run --mode both --drafter p \
        --drafter second:/x
    check drafter_twice 2 '^error: --drafter p: --mode both' $run --mode both --drafter p --drafter toy:q
    check drafter_not_wanted 2 'no weights to fill in' $run --mode bare --drafter p
    check count_root 0 '"budget": 11' $run --json --mode both --drafter p --count-root
    check count_root_auto 2 'expected a budget of 2 or more, found auto' $run --draft toy --count-root
    check budget_range 2 'expected auto or a whole number from 1 to 255' $run --budget 256
    check modes 0 '= --draft toy:\{toy\},differ=4 --draft second --budget 12' "$toy" modes
    check modes_json 0 '' "$toy" modes --json
    holds modes_json_parses python3 -m json.tool "$tmp/out"
}

test_run() {
    run="$toy run -m $model -p hi"
    check run_text 0 '^61 tokens, .* tok/s, plain decoding$' $run
    plain=$(cat "$tmp/out")
    check run_summary 0 'acceptance length 2\.9., first drafted position right in 75% of 61 rounds, drafters toy$' \
        $run --draft toy
    check run_nothing_drafted 0 'tok/s, nothing drafted .auto: .*--budget N forces drafts., drafters toy$' $run --draft toy,idle=0
    check run_nothing_proposed 0 'nothing drafted .the drafters had nothing to propose., drafters toy$' $run --draft toy,idle=1 \
        --budget 9
    check run_plain_drafts_nothing 0 'tok/s, plain decoding$' $run
    check run_drafting 0 '^accepted: toy 4[0-9] of [0-9]+; by depth .*; cuts from depth 0 none; .* rounds, ' $run --draft toy
    same run_text_is_exact "$plain" "$(cat "$tmp/out")"
    check compare_identical 0 'ratio .*, text identical: yes' $run --draft toy --compare
    check compare_different 3 'text identical: no' $run --draft toy,differ=4 --compare
    check compare_end_differs 3 'generated token 61' $run --draft toy,differ=60 --compare -n 100
    check json_document 0 '' $run --draft toy --json --compare -n 5
    holds json_parses python3 -m json.tool "$tmp/out"
    same json_tokens '[103, 104, 107, 112, 119]' "$(json tokens)"
    same json_logprob -0.25 "$(json logprobs 4)"
    same json_sources '[0, 1, 1, 0, 1]' "$(json sources)"
    same json_first_position '5 80.0 60.0' "$(json stats drafted_rounds) $(json stats first_position_percent) $(
        json stats accepted_percent)"
    same json_acceptance 2.5 "$(json stats acceptance_length)"
    same json_source_counts '{"drafter": "toy", "proposed": 5, "accepted": 3}' "$(json stats sources 0)"
    same json_identical true "$(json identical)"
    check color 0 "$(printf '\033')\[32m" env NO_COLOR= $run --draft toy --color
    check no_color 0 'NO_COLOR is set' env NO_COLOR=1 $run --draft toy --color
    if grep -q "$(printf '\033')" "$tmp/out"; then fail no_color_is_plain "escapes"; else pass no_color_is_plain; fi
    trace=$tmp/trace
    check trace 0 '' $run --draft toy --trace "$trace" -n 5
    same trace_lines 6 "$(wc -l <"$trace" | tr -d ' ')"
    holds trace_is_json python3 -c 'import json, sys; [json.loads(line) for line in open(sys.argv[1])]' "$trace"
    check show 0 '^├─○ "x"  toy 0\.607$' "$toy" show "$trace"
    check show_accepted 0 '^└─● "[a-z]"  toy 0\.223$' "$toy" show "$trace" --round 3
    check show_which 0 '^round 3 of 5: 2 nodes, toy 1 of 2 accepted, cut at 1; then' "$toy" show "$trace" --round 3
    check show_round_missing 2 'the trace has 5 rounds' "$toy" show "$trace" --round 6
    check show_no_file 2 'expected FILE after' "$toy" show
    check show_missing_file 1 '' "$toy" show "$tmp/none"
    check show_no_trace 1 ':1: this is no trace' "$toy" show "$model"
    head -c 700 "$trace" >"$tmp/cut"
    check show_truncated 1 ':[0-9]+: no JSON, or cut off' "$toy" show "$tmp/cut"
    sed 's/"dgraft_trace":1/"dgraft_trace":2/' "$trace" >"$tmp/newer"
    check show_newer 1 'newer dgraft' "$toy" show "$tmp/newer"
    sed 's/"parents":\[-1,0,0\]/"parents":[-1,0,2]/' "$trace" >"$tmp/wrong"
    check show_bad_tree 1 'a parent does not stand before its node' "$toy" show "$tmp/wrong"
    sed 's/"path":\[0,2\]/"path":[0,2,1]/' "$trace" >"$tmp/wrong"
    check show_bad_path 1 'no path of the tree' "$toy" show "$tmp/wrong"
    check trace_unwritable 1 'trace .*/no/such' $run --draft toy --trace /no/such/file
    check save_memory_fails 1 'the toy remembers nothing' $run --draft toy --save-memory "$tmp/memory"
    same save_memory_fails_before_text '' "$(cat "$tmp/out")"
    check save_memory_without_drafter 2 '^error: --save-memory .* name one' $run --save-memory "$tmp/memory"
    check calibrate 0 '^8 rounds in [0-9]+ s; written to beside$' "$toy" calibrate -m "$model" --draft toy
    check calibrate_threshold 0 '^stop after pass 0 below 0\.250' "$toy" calibrate -m "$model" --draft toy --rule A
    check calibrate_out 0 'written to there' "$toy" calibrate -m "$model" --draft toy -o there
    check calibrate_json 0 '"rounds": 8' "$toy" calibrate -m "$model" --draft toy --json
    check calibrate_no_place 2 '^error: drafters second have no weights .*name it with -o FILE' "$toy" calibrate -m "$model" \
        --draft second
    check calibrate_no_weights 0 'written to there' "$toy" calibrate -m "$model" --draft second -o there
    check calibrate_nothing 2 'nothing to calibrate' "$toy" calibrate -m "$model"
    check calibrate_rule 2 'expected A or B' "$toy" calibrate -m "$model" --draft toy --rule C
    check calibrate_fails 1 'the toy failed' "$toy" calibrate -m "$model" --draft toy,fail=1
    check library_failure 1 'the toy failed' $run --draft toy,fail=3
    same text_before_a_failure ghk "$(cat "$tmp/out")"
    check missing_file 1 'cannot be read' "$toy" run -m "$tmp/none" -p hi
    check context_ends_text 0 'ended by the full context' $run -c 10
    check prompt_too_long 1 '2 tokens in a context of 1 .-c sets the context' $run -c 1
    printf 'a\n\n' >"$tmp/prompt"
    check prompt_file_newline 0 '"prompt_tokens": 2' "$toy" run -m "$model" -f "$tmp/prompt" --json -n 1
    check escapes 0 '"prompt_tokens": 3' "$toy" run -m "$model" -e -p 'a\nb' --json -n 1
    check empty_prompt 2 'the prompt is empty' "$toy" run -m "$model" -p ''
    check empty_input 2 'the prompt is empty' "$toy" run -m "$model"
    check invalid_utf8 0 '^warning: .*byte 2 is 0xFF' "$toy" run -m "$model" -p "$(printf 'a\377b')" -n 2
    printf 'a\000b' >"$tmp/nul"
    check nul_in_chat 1 'NUL byte at 2' "$toy" run -m "$model" --chat -f "$tmp/nul"
    check compare_nothing 2 'name a drafter' $run --compare
    check think 0 '"prompt_tokens": 16' $run --chat --think --json -n 1
    check think_without_switch 0 '^warning: --no-think changes nothing' $run --chat --no-think --chat-template x -n 1
    check verbose 0 'memory for a context' $run -v
}

# Output that cannot be written is an error, whatever the command.
test_output() {
    for command in "run -m $model -p hi" "run -m $model -p hi --json" 'modes' "info -m $model" '--help' \
        '--version' "tokens -m $model -p hi" "verify -m $model --draft toy -p hi" 'run --help'; do
        "$toy" $command >/dev/full 2>"$tmp/err"
        rc=$?
        if [ $rc = 1 ] && grep -q '^error: cannot write to standard output: No space' "$tmp/err"; then
            pass "full_device_$(echo "$command" | tr -cd 'a-z-')"
        else
            fail "full_device_$(echo "$command" | tr -cd 'a-z-')" "status $rc: $(cat "$tmp/err")"
        fi
    done
    { sleep 0.3; "$toy" run -m "$model" -p hi 2>"$tmp/err"; echo $? >"$tmp/rc"; } | true
    same broken_pipe_status 1 "$(cat "$tmp/rc")"
    holds broken_pipe_message grep -q '^error: cannot write to standard output: Broken pipe' "$tmp/err"
}

# A message in the middle of a text begins a line where both streams go to one place; the text itself stays as it is.
test_log_in_text() {
    run="$toy run -m $model -p hi -n 5 --draft toy,log=3"
    $run >"$tmp/both" 2>&1
    same log_begins_a_line 'ghk|warning: the toy has a word|pw|' "$(head -3 "$tmp/both" | tr '\n' '|')"
    $run >"$tmp/out" 2>"$tmp/err"
    same log_leaves_text ghkpw "$(cat "$tmp/out")"
    same log_apart 'warning: the toy has a word' "$(head -1 "$tmp/err")"
    "$toy" run -m "$model" -p hi -n 5 --draft toy,log=0 >"$tmp/both" 2>&1
    same log_before_text 'warning: the toy has a word|ghkpw|' "$(head -2 "$tmp/both" | tr '\n' '|')"
    printf 'a\n' | "$toy" chat -m "$model" -n 5 --draft toy,log=3 >"$tmp/both" 2>&1
    holds log_in_chat grep -qx 'warning: the toy has a word' "$tmp/both"
    terminal log_on_terminal 0 "$toy" run -m "$model" -p hi -n 5 --draft toy,log=3 <<'E'
wait ghk\r\nwarning: the toy has a word\r\n
wait \r\naccepted:
E
}

interrupt() { # name, pattern, command...: Ctrl-C after 0.3 s
    name=$1 pattern=$2
    shift 2
    # a background job of a shell without job control ignores SIGINT, so Python sends and waits
    python3 - "$@" >"$tmp/out" 2>"$tmp/err" <<'PY'
import signal, subprocess, sys, time
p = subprocess.Popen(sys.argv[1:], preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
time.sleep(0.5)
p.send_signal(signal.SIGINT)
sys.exit(p.wait(20) & 255)
PY
    same "${name}_status" 130 $?
    holds "${name}_report" grep -qE "$pattern" "$tmp/err" "$tmp/out"
}

test_interrupts() {
    interrupt interrupted_run 'tok/s.*interrupted$' "$toy" run -m "$model" -p hi --draft toy,sleep=50
    interrupt interrupted_compare 'interrupted$' "$toy" run -m "$model" -p hi --draft toy,sleep=50 --compare
    interrupt interrupted_verify '^0 of 1 cases' "$toy" verify -m "$model" -p hi --draft toy,sleep=50
}

test_verify() {
    printf '%s\n' '{"id": "a", "category": "c", "prompt": "Hello"}' '' '{"id": 7, "turns": ["One", "Two"], "x": 1}' \
        >"$tmp/prompts"
    verify="$toy verify -m $model --chat --prompts $tmp/prompts -n 20"
    # a, 7 turn 1, 7 turn 2: once greedily, twice with a seed
    check verify_identical 0 '^9 of 9 cases: 9 identical, 0 different' $verify --draft toy --temp 0,0.8 --seed 1,2
    same verify_lines 9 "$(grep -c '^\[[0-9]/9\] .*: identical, 20 tokens' "$tmp/out")"
    check verify_different 3 '^3 of 3 cases: 0 identical, 3 different' $verify --draft toy,differ=4
    holds verify_tokens grep -qE 'token 5 .position 24.:  plain "y" .121, .*drafted "#" .35, .*gap 0.148438, bound 0: texts must be equal' "$tmp/out"
    check verify_no_exact 3 'gap 0.148438, bound 0.128: above' $verify --draft toy,differ=4 --no-exact
    holds verify_no_near grep -q '0 identical, 3 different (0 by a gap within 0.128)' "$tmp/out"
    check verify_both_exact 2 '^error: --exact and --no-exact' $verify --draft toy --exact --no-exact
    check verify_longer 3 'plain "" .256' "$toy" verify -m "$model" -p x --draft toy,differ=60
    check verify_shorter 3 'plain "h" .104, .*drafted .end: limit.' "$toy" verify -m "$model" -p x --draft toy,short=2
    check verify_json 3 '' $verify --draft toy,differ=4 --json
    same verify_json_first 4 "$(json cases 0 first_difference)"
    same verify_json_drafted '60 39' "$(json drafted) $(json accepted)"
    check verify_drafted 0 '; 60 tokens, 60 drafted, 39 of them accepted, ' $verify --draft toy
    check verify_budget 0 '' $verify --draft toy,idle=0 --json
    same verify_budget_is_fixed 15 "$(json budget)"
    check verify_budget_of_mode 3 '"budget": 12' $verify --mode both --drafter p --json
    check verify_tests_nothing 1 '^error: nothing was drafted, so nothing was tested: .*--budget N' $verify --draft toy,idle=0 \
        --budget auto
    check verify_proposes_nothing 1 '^error: nothing was drafted, .*had nothing to propose' $verify --draft toy,idle=1 --json
    same verify_json_nothing '3 0' "$(json identical) $(json drafted)"
    check verify_count_root 0 '"budget": 14' $verify --draft toy --count-root --json
    check verify_without_drafter 2 'name a drafter' "$toy" verify -m "$model" -p x
    check verify_failure 1 '^error: prompt: the toy failed' "$toy" verify -m "$model" -p x --draft toy,fail=3
    bad() { # name, pattern, text
        printf "$3" >"$tmp/bad"
        check "$1" 1 "^error: $tmp/bad$2" "$toy" verify -m "$model" --draft toy --prompts "$tmp/bad"
    }
    bad prompts_wrong_type ':2: .prompt.: expected a text' '{"prompt":"x"}\n{"prompt":3}\n'
    bad prompts_not_json ':3: ' '{"prompt":"x"}\n\n{"prompt":\n'
    bad prompts_none ': expected at least one line' '\n'
    bad prompts_turns ':1: .turns. need the chat format' '{"turns":["a"]}'
    bad prompts_neither ':1: expected either' '{"id":"q"}'
    bad prompts_twice ':1: duplicate' '{"prompt":"a","prompt":"b"}'
    check prompts_missing 1 'No such file' "$toy" verify -m "$model" --draft toy --prompts "$tmp/none"
}

test_chat() {
    printf '%s\n' Hello Again /stats '/system Be brief' 'two \' lines /rest /reset /help /quit never >"$tmp/talk"
    "$toy" chat -m "$model" --draft toy -c 200 <"$tmp/talk" >"$tmp/out" 2>"$tmp/err"
    same chat_status 0 $?
    same chat_answers 2 "$(wc -l <"$tmp/out")"
    # <user>Hello\n<answer> is 22 tokens and what both prompts share ends before <answer>'s first letter
    holds chat_reuse grep -q '^prompt: 104 tokens (14 reused)' "$tmp/err"
    holds chat_suggestion grep -q 'did you mean /reset' "$tmp/err"
    holds chat_full grep -q 'in a context of 200: the message was dropped' "$tmp/err"
    holds chat_help grep -q '^/system TEXT' "$tmp/err"
    printf 'a\n/system refused\nb\n/stats\n' | "$toy" chat -m "$model" >"$tmp/out" 2>"$tmp/err"
    same chat_goes_on_without_system "0 2" "$? $(wc -l <"$tmp/out")"
    holds chat_system_refused grep -q '^error: it has no role system' "$tmp/err"
    printf '%0300d\nshort\n' 0 | "$toy" chat -m "$model" -c 200 -n 5 >"$tmp/out" 2>"$tmp/err"
    same chat_goes_on_after_full 1 "$(wc -l <"$tmp/out")"
    printf 'a\nb\n' | "$toy" chat -m "$model" >/dev/full 2>"$tmp/err"
    same chat_full_device 1 "$(grep -c 'cannot write' "$tmp/err")"
}

terminal() { # name, status, program...; the script comes on standard input
    name=$1 want=$2
    shift 2
    cat >"$tmp/script"
    python3 tests/e2e/terminal.py "$tmp/script" "$@" >"$tmp/out" 2>&1
    got=$?
    if [ $got = "$want" ]; then pass "$name"; else fail "$name" "status $got: $(cat -v "$tmp/out")"; fi
}

# What only happens on a terminal: the prompt, Ctrl-C in an answer and twice at the prompt, progress.
test_terminal() {
    kinds=$toy
    if pkg-config --exists libedit; then
        holds toy_builds_with_libedit build_toy_editing
        kinds="$toy $toy-editing"
    else
        skip terminal_editing
    fi
    for program in $kinds; do
        kind=${program#"$toy"}
        terminal "terminal_chat$kind" 130 "$program" chat -m "$model" --draft toy,sleep=50 <<'E'
wait >
send h\xc3\xa9llo\n
wait \n
wait lmpub
send \x03
wait (stopped)
wait >
send /stats\n
wait interrupted
wait >
send \x03
wait once more
wait >
send \x03
E
        terminal "terminal_end$kind" 0 "$program" chat -m "$model" <<'E'
wait >
send \x03
wait once more
wait >
send /system x\n
wait system message set
send \x03
wait once more
wait >
send \x04
E
    done
    terminal terminal_run 0 "$toy" run -m "$model" --draft toy <<'E'
wait reading the prompt from the terminal
send abc\n\x04
wait opening
wait 61 tokens
E
    terminal terminal_interrupt 130 "$toy" run -m "$model" -p hi --draft toy,sleep=50 <<'E'
wait ghk
send \x03
wait interrupted
E
}

test_other() {
    check tokens_quoted 0 '^ +34  "\\""$' "$toy" tokens -m "$model" -p "$(printf 'a"\351')"
    holds tokens_bytes grep -q '^ *233  "\\xE9"$' "$tmp/out"
    check tokens_json 0 '"bytes": "e9"' "$toy" tokens -m "$model" -p "$(printf 'a\351')" --json
    holds tokens_json_parses python3 -m json.tool "$tmp/out"
    check tokens_ids 0 '^ABC$' "$toy" tokens -m "$model" --ids '65, 66 67'
    check tokens_ids_range 2 "from 0 to 256, found '257'" "$toy" tokens -m "$model" --ids 65,257
    check tokens_ids_text 2 "found '6x'" "$toy" tokens -m "$model" --ids 6x
    check info 0 '^  workspace' "$toy" info -m "$model" --draft toy
    check info_json 0 '' "$toy" info -m "$model" --draft toy --json -c 77
    same info_json_context 77 "$(json memory context)"
    check convert 0 'wrote' "$toy" convert -m "$model" -o "$tmp/converted" --type q8_0
    same convert_written 'type 14 tokenizer none' "$(cat "$tmp/converted")"
    check convert_layers 0 'wrote' "$toy" convert -m "$model" -o "$tmp/short" --type q8_0 --layers 8
    same convert_layers_kept 'type 14 tokenizer none layers 8' "$(cat "$tmp/short")"
    check convert_exists 2 'exists; --force' "$toy" convert -m "$model" -o "$tmp/converted" --type q8_0
    check convert_force 0 'wrote' "$toy" convert -m "$model" -o "$tmp/converted" --type bf16 --force \
        --tokenizer "$tmp/t"
    same convert_replaced "type 2 tokenizer $tmp/t" "$(cat "$tmp/converted")"
    check convert_onto_itself 2 'is the input itself' "$toy" convert -m "$model" -o "$model" --type f16 --force
    check convert_type 2 "found 'q9'" "$toy" convert -m "$model" -o "$tmp/x" --type q9
    check convert_no_type 2 'needs --type' "$toy" convert -m "$model" -o "$tmp/x"
    check convert_failure 1 'cannot be read' "$toy" convert -m "$tmp/none" -o "$tmp/x" --type f16
}

# Every option of every --help is in the man page.
test_manual() {
    for command in run chat tokens info verify modes convert answers show calibrate; do
        "$toy" "$command" --help >"$tmp/help" || fail "help_$command" "status"
        missing=$(sed -n '/^Options:/,/^Examples:/s/^  \(-[^A-Z[]*\).*/\1/p' "$tmp/help" | tr -d ',' | tr ' ' '\n' |
            grep '^-' | while read -r option; do
            grep -qF -e "$(printf '%s' "$option" | sed 's/-/\\-/g')" runtime/dgraft.1 || printf '%s ' "$option"
        done)
        same "manual_$command" '' "$missing"
    done
}

# What drafters learned goes to a file and back; a bad file is refused by name, before anything is generated.
test_real_memory() {
    dgraft=$BUILD/dgraft target=$GOLDEN/dflash/target-qwen3 m=$tmp/m
    have_golden real_memory || return
    run="$dgraft run -m $target -n 24 --ignore-eos"
    check memory_save 0 'tok/s' $run -p 'the river runs' --draft recycling --save-memory "$m"
    check memory_load 0 'text identical: yes' $run -p 'the river' --draft "fused:$m" --compare
    check memory_other_drafter 0 'text identical: yes' $run -p 'the river' --draft "fill:$m" --compare
    holds memory_trial_is_gone test ! -e "$m.try"
    check memory_none 2 'no drafter of this session has a memory' $run -p x --draft ngram --save-memory "$m.x"
    same memory_none_before_text '' "$(cat "$tmp/out")"
    check memory_off 2 'm=0 switches it off' $run -p x --draft fused,m=0 --save-memory "$m.x"
    check memory_unwritable 1 'no/such' $run -p x --draft fused --save-memory /no/such/file
    head -c 1000 "$m" >"$m.cut"
    check memory_truncated 1 "$m.cut" $run -p x --draft "fused:$m.cut"
    python3 - "$m" <<'PY'
import sys
b = bytearray(open(sys.argv[1], 'rb').read())
for name, at, value in (('newer', 8, 2), ('vocab', 12, 99), ('sum', len(b) - 3, 0x7f)):
    c = bytearray(b)
    c[at] = value
    open(f'{sys.argv[1]}.{name}', 'wb').write(c)
PY
    check memory_newer 1 'version' $run -p x --draft "fused:$m.newer"
    check memory_other_vocabulary 1 'vocabulary' $run -p x --draft "graft:$m.vocab"
    check memory_damaged 1 "$m.sum" $run -p x --draft "recycling:$m.sum"
    check memory_no_text 1 "$m.bytes" sh -c "printf 'a\\351\\000b' >'$m.bytes'; $run -p x --draft 'fused:$m.bytes'"
}

# A trace of real rounds, and a calibration that the next run begins with.
test_real_calibration() {
    dgraft=$BUILD/dgraft target=$GOLDEN/eagle3/target-llama head=$GOLDEN/eagle3/head-llama c=$tmp/c.json
    [ -f "$head/config.json" ] || { have_golden real_calibration; return; }
    mode="--mode graft-eagle3 --drafter $head"
    check real_trace 0 '' "$dgraft" run -m "$target" -p 'the river runs' -n 40 --ignore-eos $mode --trace "$tmp/rounds"
    check real_show 0 '^round .*eagle3 [0-9]+ of' "$dgraft" show "$tmp/rounds"
    check real_show_accepted 0 '●' "$dgraft" show "$tmp/rounds" --round 1
    printf '%s\n' '{"prompt": "the river runs to the sea"}' '{"prompt": "a bird in the hand"}' >"$tmp/warm"
    check calibrate_no_place_real 2 'drafters recycling have no weights' "$dgraft" calibrate -m "$target" --draft recycling \
        --prompts /no/such
    calibrate="$dgraft calibrate -m $target $mode --prompts $tmp/warm -n 40 -o $c"
    check real_calibrate 0 '^stop after pass 5 below' $calibrate
    check real_calibrate_loss 0 '^stop after pass 0 below' $calibrate --rule A
    check real_calibrated 0 'text identical: yes' "$dgraft" run -m "$target" -p 'the river' -n 24 --ignore-eos $mode \
        --calibration "$c" --compare
    check real_calibration_taken 0 'calibration of [0-9]+ rounds' "$dgraft" run -m "$target" -p 'the river' -n 4 $mode \
        --calibration "$c" -v
    sed 's/"machine": "/&another /' "$c" >"$c.other"
    check calibration_of_another_machine 2 'calibrated for another machine' "$dgraft" run -m "$target" -p x -n 4 $mode \
        --calibration "$c.other"
    head -c 300 "$c" >"$c.cut"
    check calibration_truncated 1 "$c.cut" "$dgraft" run -m "$target" -p x -n 4 $mode --calibration "$c.cut"
    check calibration_missing 1 'no/such' "$dgraft" run -m "$target" -p x -n 4 $mode --calibration no/such
}

test_real() {
    dgraft=$BUILD/dgraft
    have_golden real || return
    target=$GOLDEN/dflash/target-qwen3 drafter=$GOLDEN/dflash/d1-b8
    check real_info 0 '^  target weights' "$dgraft" info -m "$target" --draft "dflash:$drafter"
    check real_tokens 0 '' "$dgraft" tokens -m "$target" -p 'the river runs' --json
    ids=$(json tokens | python3 -c 'import json, sys; print(*[t["id"] for t in json.load(sys.stdin)])')
    check real_tokens_back 0 'the river runs' "$dgraft" tokens -m "$target" --ids "$ids"
    check real_run 0 'tok/s, plain decoding' "$dgraft" run -m "$target" -p 'the river' -n 24
    check real_compare 0 'text identical: yes' "$dgraft" run -m "$target" -p 'the river' -n 40 --ignore-eos \
        --draft "dflash:$drafter" --compare
    check real_json 0 '' "$dgraft" run -m "$target" -p 'the river' -n 24 --ignore-eos --json \
        --draft "dflash:$drafter" --draft ngram
    same real_json_tokens 24 "$(json tokens | python3 -c 'import json, sys; print(len(json.load(sys.stdin)))')"
    check real_verify 0 '^3 of 3 cases: 3 identical' "$dgraft" verify -m "$target" -p 'the river' -n 32 \
        --draft "dflash:$drafter" --temp 0,0.9 --seed 1,2 --ignore-eos
    check real_wrong_drafter 1 'd1-b8/config|none' "$dgraft" run -m "$target" -p x --draft "dflash:$tmp/none"
    check real_not_a_model 1 '^error: ' "$dgraft" run -m "$model" -p x
    long=$(head -c 60000 /dev/zero | tr '\0' 'q')
    check real_prompt_too_long 1 '^error: [0-9]{5} tokens do not fit .* 64 \(-c sets the context' "$dgraft" run -m "$target" -p "$long" -c 64
}

if ! build_toy >"$tmp/log" 2>&1; then
    fail toy_builds "$(tail -5 "$tmp/log")"
    exit 1
fi
test_usage
test_refusals
test_no_effect
test_drafts
test_run
test_output
test_log_in_text
test_interrupts
test_verify
test_chat
test_terminal
test_other
test_manual
test_real
test_real_memory
test_real_calibration
exit $failures
