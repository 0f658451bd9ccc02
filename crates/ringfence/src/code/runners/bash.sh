# In the box: runs code that came over descriptor 0, a socket, and sends back what came of it. Started by `bash -c`.
# The request: a line with the lengths of code, inputs and variables, then all of them; then files. See request.rs.
exec {__channel}<&0 0</dev/null

__take() { # NAME LENGTH: so many bytes into a variable
    local LC_ALL=C
    if (($2 == 0)); then
        printf -v "$1" ''
    elif (($2 > 4096)) && command -v head >/dev/null; then
        # bash reads a socket byte by byte. The dot keeps line ends at the end.
        local __text
        __text=$(head -c "$2" <&"$__channel"; printf .)
        printf -v "$1" '%s' "${__text%.}"
    else
        IFS= read -r -d '' -N "$2" -u "$__channel" "${1?}"
    fi
}

__send() { # KIND TEXT
    local LC_ALL=C
    printf '%s %d\n%s' "$1" "${#2}" "$2" >&"$__channel"
}

__files() { # PATTERN…: the files that were asked for; the host bounds them again
    local __name LC_ALL=C
    shopt -s globstar nullglob
    local IFS=
    for __name in $@; do
        [[ -f $__name && ! -L $__name && -r $__name ]] || continue
        local __size
        __size=$(wc -c <"$__name") || continue
        ((__size <= 16 << 20)) || __size=$(((16 << 20) + 1))
        local __head="${#__name}"$'\n'"$__name"
        printf 'f %d\n%s' "$((${#__head} + __size))" "$__head" >&"$__channel"
        head -c "$__size" <"$__name" >&"$__channel"
    done
}

__finish() { # STATUS: once
    [[ -n $__sent ]] && return
    __sent=1
    trap - ERR
    if ((${#__out[@]})); then
        __files "${__out[@]}"
    fi
    local __text=$'\n'
    if [[ -v result ]]; then
        __text="=$result"
    fi
    __send b "$1 ${__line:-0} $__interrupted"$'\n'"$__text"
}

# At the top level, not in a function: what the code declares is then global, as in any script.
set --
while IFS=' ' read -r __code_length __inputs_length __variables __file_count __patterns __keep <&"$__channel"; do
    __take __code "$__code_length"
    __take inputs "$__inputs_length"
    for ((__i = 0; __i < __variables; __i++)); do
        IFS=' ' read -r __key __length <&"$__channel"
        __take __value "$__length"
        printf -v "$__key" '%s' "$__value"
    done
    for ((__i = 0; __i < __file_count; __i++)); do
        IFS=' ' read -r __length __size <&"$__channel"
        __take __key "$__length"
        [[ $__key == */* ]] && mkdir -p -- "${__key%/*}"
        head -c "$__size" <&"$__channel" >"$__key"
    done
    __out=()
    for ((__i = 0; __i < __patterns; __i++)); do
        read -r __length <&"$__channel"
        __take __key "$__length"
        __out+=("$__key")
    done
    unset __key __value result
    __sent= __line=0 __interrupted=0
    __send s ''
    # Lines of the code, not of this program.
    trap '[[ ${BASH_SOURCE[0]} == /dev/fd/* ]] && __line=$LINENO' ERR
    trap '__finish $?' EXIT
    ((__keep)) && trap '__interrupted=1' INT
    exec {__script}<<<"$__code"
    # shellcheck source=/dev/null
    source "/dev/fd/$__script"
    __finish "$?"
    exec {__script}<&-
    ((__keep)) || exit 0
done
exit 0
