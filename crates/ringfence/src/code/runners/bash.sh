# In the box: runs code that came over descriptor 0, a socket, and sends back what came of it. Started by `bash -c`.
# The request: a line with the lengths of code, inputs and variables, then all of them; then files. See request.rs.
exec {__channel}<&0 0</dev/null
__sender=$__channel __written=()
# In a session: an end of its own for results, and files in the place of its output.
if (($#)); then
    for __need in head mkdir rm tail wc; do
        command -v "$__need" >/dev/null || { echo "bash needs \`$__need\` beside it" >&"$0"; exit 127; }
    done
    __sender=$0
    # What messages begin with.
    BASH_ARGV0=bash
    __written=("$1" "$2")
fi

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
    printf '%s %d\n%s' "$1" "${#2}" "$2" >&"$__sender"
}

__found() { # FOLDER PATTERN: files that a pattern names, into __names. Links are not followed, as `l/*` of the shell would.
    local __part=${2%%/*} __rest= __below= __entry
    [[ $2 == */* ]] && __rest=${2#*/} __below=$__rest
    if [[ $__part == '**' ]]; then
        [[ -n $__rest ]] && __found "$1" "$__rest"
        __below=$2
    fi
    for __entry in "$1"$__part; do
        [[ -L $__entry ]] && continue
        if [[ -d $__entry ]]; then
            [[ -n $__below ]] && ((${#FUNCNAME[@]} < 64)) && __found "$__entry/" "$__below"
        elif [[ -z $__rest && -f $__entry && -r $__entry && -z ${__known["x$__entry"]} ]]; then
            __known["x$__entry"]=1 __names+=("$__entry")
        fi
    done
}

__files() { # PATTERN…: the files that were asked for; the host bounds them again
    local __name __names=() LC_ALL=C IFS=
    local -A __known=()
    shopt -s nullglob
    shopt -u globstar dotglob nocaseglob failglob extglob
    set +efu
    for __name; do
        __found '' "$__name"
    done
    for __name in "${__names[@]}"; do
        local __size
        __size=$(wc -c <"$__name") || continue
        ((__size <= 32 << 20)) || __size=$(((32 << 20) + 1))
        local __head="${#__name}"$'\n'"$__name"
        printf 'f %d\n%s' "$((${#__head} + __size))" "$__head" >&"$__sender"
        head -c "$__size" <"$__name" >&"$__sender"
    done
}

__output() { # what was written, head and tail
    local __kind __file __size __half=$((1 << 19)) __dropped __between LC_ALL=C
    for __kind in o e; do
        __file=/dev/fd/${__written[0]} __written=("${__written[@]:1}")
        __size=$(wc -c <"$__file")
        if ((__size == 0)); then
            continue
        elif ((__size <= 2 * __half)); then
            printf '%s %d\n0\n' "$__kind" "$((__size + 2))"
            head -c "$__size" <"$__file"
        else
            __dropped=$((__size - 2 * __half))
            __between=$'\n'"[$__dropped bytes dropped]"$'\n'
            printf '%s %d\n%s\n' "$__kind" "$((${#__dropped} + 1 + 2 * __half + ${#__between}))" "$__dropped"
            head -c "$__half" <"$__file"
            printf '%s' "$__between"
            tail -c "$__half" <"$__file"
        fi >&"$__sender"
    done
}

__finish() { # STATUS: once
    [[ -n $__sent ]] && return
    __sent=1
    trap - ERR
    if ((${#__out[@]})); then
        __files "${__out[@]}"
    fi
    if ((${#__written[@]})); then
        __output
    fi
    local __text=$'\n'
    if [[ -v result ]]; then
        local LC_ALL=C
        # Of one that is too large, the beginning.
        if ((${#result} < 4 << 20)); then
            __text="=$result"
        else
            __text="~${result:0:65536}"
        fi
    fi
    __send b "$1 ${__line:-0}"$'\n'"$__text"
}

# At the top level, not in a function: what the code declares is then global, as in any script.
set --
__taken= __unwritten= __own=
if IFS=' ' read -r __code_length __inputs_length __variables __file_count __patterns __mark <&"$__channel"; then
    __take __code "$__code_length"
    __take inputs "$__inputs_length"
    for ((__i = 0; __i < __variables; __i++)); do
        IFS=' ' read -r __key __length <&"$__channel"
        __take __value "$__length"
        # One that the shell has may have attributes: a value that is given to an integer is evaluated, and can run commands.
        if declare -p "$__key" &>/dev/null; then
            __own=$__key
        else
            printf -v "$__key" '%s' "$__value"
        fi
    done
    for ((__i = 0; __i < __file_count; __i++)); do
        IFS=' ' read -r __length __size <&"$__channel"
        __take __key "$__length"
        # That it cannot be is told by the file.
        [[ $__key == */* ]] && mkdir -p -- "${__key%/*}" 2>/dev/null
        # In a session it lies in the project: nothing there is replaced.
        if [[ -e $__key || -L $__key ]]; then
            __taken=$__key __key=/dev/null
        fi
        # All of it is read, whatever becomes of it: the next file begins where this one ends.
        head -c "$__size" <&"$__channel" | {
            head -c "$__size" >"$__key" && exit
            # Half of it is not left.
            [[ -f $__key ]] && rm -f -- "$__key"
            head -c "$__size" >/dev/null
            exit 1
        } 2>/dev/null || __unwritten=${__unwritten:-$__key}
    done
    __out=()
    for ((__i = 0; __i < __patterns; __i++)); do
        read -r __length <&"$__channel"
        __take __key "$__length"
        __out+=("$__key")
    done
    unset __key __value result
    __sent= __line=0
    if [[ $__mark != - ]]; then
        printf '\n%s\n' "$__mark" >&"$__sender"
    fi
    # Before the start: what cannot be there is no failure of the code.
    if [[ -n $__own ]]; then
        __send v "$__own"
        exit 0
    fi
    if [[ -n $__taken ]]; then
        __send u "$__taken: a file of that name is there already, and nothing is replaced"
        exit 0
    fi
    if [[ -n $__unwritten ]]; then
        __send u "$__unwritten: the file could not be written"
        exit 0
    fi
    __send s ''
    # Lines of the code, not of this program.
    trap '[[ ${BASH_SOURCE[0]} == /dev/fd/* ]] && __line=$LINENO' ERR
    trap '__finish $?' EXIT
    if [[ $__mark != - ]]; then
        # Its time is up, or somebody cancels it.
        trap 'exit 130' INT
    fi
    # A line end comes with it: one that is there already would make the last line one too many.
    exec {__script}<<<"${__code%$'\n'}"
    # shellcheck source=/dev/null
    source "/dev/fd/$__script"
    __finish "$?"
    exit 0
fi
exit 0
