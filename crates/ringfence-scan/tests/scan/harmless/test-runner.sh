#!/bin/bash
failed=0
for test in tests/*.sh; do
  if bash "$test" > /dev/null 2>&1; then echo "ok $test"; else echo "FAIL $test"; failed=1; fi
done
exit $failed
