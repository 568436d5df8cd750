"""What bash, zsh and fish run to complete gpu-engine and gpu-panel.

Each gives the command line as far as the cursor, in COMP_LINE, to the command that is typed, and
gets a line for each answer: its kind, its value and its help, with tabs between. Kinds: plain; more
(the word goes on, no blank behind it); file and command (the shell itself completes those).
"""

from __future__ import annotations

SHELLS = ("bash", "zsh", "fish")


def text(shell: str) -> str:
    """The script for one of `SHELLS`."""
    return {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}[shell]


# bash 3.2, as macOS has it, knows neither compopt nor the option nosort.
_BASH = r"""# Completion of gpu-engine and gpu-panel for bash.
_gpu_panel_complete() {
    local kind value current=${COMP_WORDS[COMP_CWORD]} variable=_GPU_ENGINE_COMPLETE
    case $1 in *gpu-panel) variable=_GPU_PANEL_COMPLETE ;; esac
    COMPREPLY=()
    while IFS=$'\t' read -r kind value; do
        case $kind in
            plain | more)
                case $current in
                    [\'\"]*) ;;
                    *) printf -v value %q "$value" ;;
                esac
                COMPREPLY+=("$value")
                if [ "$kind" = more ]; then compopt -o nospace 2>/dev/null; fi ;;
            file | command)
                if [ "$kind" = command ]; then kind=-c; else kind=-f; fi
                compopt -o filenames 2>/dev/null
                while IFS= read -r value; do COMPREPLY+=("$value"); done \
                    < <(compgen "$kind" -- "$2") ;;
        esac
    done < <(env "$variable=bash_complete" COMP_LINE="${COMP_LINE:0:COMP_POINT}" \
                 COMP_CURRENT="$current" "$1" 2>/dev/null)
}
complete -o nosort -F _gpu_panel_complete gpu-engine gpu-panel 2>/dev/null ||
    complete -F _gpu_panel_complete gpu-engine gpu-panel
"""

_ZSH = r"""#compdef gpu-engine gpu-panel
# Completion of gpu-engine and gpu-panel for zsh.
_gpu_panel() {
    local kind value help variable=_GPU_ENGINE_COMPLETE line
    local -a plain more
    local -i files=0 commands=0
    [[ ${words[1]:t} == gpu-panel ]] && variable=_GPU_PANEL_COMPLETE
    line="${(j: :)words[1,CURRENT-1]} $QIPREFIX$PREFIX"
    while IFS=$'\t' read -r kind value help; do
        value=${value//:/\\:}
        case $kind in
            plain) plain+=("$value${help:+:$help}") ;;
            more) more+=("$value${help:+:$help}") ;;
            file) files=1 ;;
            command) commands=1 ;;
        esac
    done < <(env "$variable=zsh_complete" COMP_LINE="$line" "${(Q)words[1]}" 2>/dev/null)
    (( $#plain )) && _describe -V unsorted plain
    (( $#more )) && _describe -V unsorted more -S ''
    (( files )) && _files
    (( commands )) && _command_names -e
    return 0
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _gpu_panel "$@"
else
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
    compdef _gpu_panel gpu-engine gpu-panel
fi
"""

_FISH = r"""# Completion of gpu-engine and gpu-panel for fish.
function __gpu_panel_complete
    set -l tokens (commandline -opc)
    set -l variable _GPU_ENGINE_COMPLETE
    string match -q '*gpu-panel' -- $tokens[1]; and set variable _GPU_PANEL_COMPLETE
    set -l line (commandline -cp | string collect)
    for answer in (env $variable=fish_complete COMP_LINE="$line" $tokens[1] 2>/dev/null)
        set -l parts (string split \t -- $answer)
        switch $parts[1]
            case file
                __fish_complete_path (commandline -ct)
            case command
                __fish_complete_command
            case '*'
                printf '%s\t%s\n' $parts[2] $parts[3]
        end
    end
end
complete -c gpu-engine -f -k -a '(__gpu_panel_complete)'
complete -c gpu-panel -f -k -a '(__gpu_panel_complete)'
"""
