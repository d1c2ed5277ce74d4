#!/bin/sh
# api.sh LIBRARY EXAMPLE MODEL - the shared library exports mlxcel_* and nothing else, and the example program answers.
# Prints TAP.
failed=0
n=0
check() { # STATUS NAME
    n=$((n + 1))
    if [ "$1" -eq 0 ]; then echo "ok $n - $2"; else echo "not ok $n - $2"; failed=1; fi
}
echo 1..6
names=$(nm -D --defined-only "$1" | awk '{print $3}' | sed 's/@.*//')
foreign=$(echo "$names" | grep -v '^mlxcel_')
[ -z "$foreign" ] || echo "# also exported:" $foreign
[ -z "$foreign" ]
check $? "only mlxcel_ names are exported"
# What the header declares and what is there are the same.
declared=$(grep -o 'mlxcel_[a-z_]*(' "$(dirname "$0")/../include/mlxcel.h" | tr -d '(' | sort -u)
[ "$declared" = "$(echo "$names" | sort -u)" ]
check $? "every function of the header is exported"
answer=$("$2" "$3" 'What is 17 + 25?')
check $? "the example runs"
case $answer in *42*) r=0 ;; *) r=1; echo "# $answer" ;; esac
check $r "the example answers 42"
why=$("$2" "$3/none" x 2>&1)
[ $? -eq 1 ]
check $? "a missing model is an error"
[ "$(echo "$why" | wc -l)" -eq 1 ]
check $? "and one sentence"
exit $failed
