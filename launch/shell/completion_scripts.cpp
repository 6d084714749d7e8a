#include "launch/shell/shell_completion.h"

namespace jforge {

// bash also splits words at = : @, and replaces only $2, the last part of the last word.
constexpr const char* kBash =
    R"bash(# bash completion for jforge. To try it: source <(jforge completion bash)
_jforge() {
  local rest=${COMP_LINE:0:COMP_POINT} words=() word
  for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
    [[ ${#words[@]} -eq 0 || $rest == [[:space:]]* ]] && words+=('')
    rest=${rest#"${rest%%[![:space:]]*}"}
    [[ $rest == "$word"* ]] || word=$rest
    rest=${rest#"$word"}
    words[-1]+=$word
  done
  COMPREPLY=()
  while IFS=$'\t' read -r word _; do
    case $word in
      :file) compopt -o default ;;
      :dir) compopt -o filenames -o plusdirs ;;
      :toml) compopt -o filenames -o plusdirs
        mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -X '!*.toml' -- "$2") ;;
      *=) compopt -o nospace ;&
      *) COMPREPLY+=("${word#"${words[-1]%"$2"}"}") ;;
    esac
  done < <(command "${1/#\~/$HOME}" __complete -- "${words[@]:1}" 2>/dev/null)
}
complete -F _jforge jforge
)bash";

// The last line registers a sourced script; zsh finds an installed one by its first line.
constexpr const char* kZsh = R"zsh(#compdef jforge
# zsh completion for jforge. To try it, after compinit: source <(jforge completion zsh)
_jforge() {
  local line
  local -a typed=("${(@Q)words[2,CURRENT-1]}" "$PREFIX") found suffix
  local -a lines=(${(f)"$(command ${~words[1]} __complete -- "${typed[@]}" 2>/dev/null)"})
  [[ $PREFIX == --*=* ]] && compset -P 1 '*='
  for line in $lines; do
    case $line in
      :file) _files ;;
      :dir) _files -/ ;;
      :toml) _files -g '*.toml' ;;
      *=$'\t'*) suffix=(-S '') ;&
      *) found+=("${${${line%%$'\t'*}#$IPREFIX}//:/\\:}:${line#*$'\t'}") ;;
    esac
  done
  found=(${found%:})
  (( $#found )) && _describe value found "${suffix[@]}"
}
if [[ $funcstack[1] == _jforge ]]; then _jforge "$@"; else compdef _jforge jforge; fi
)zsh";

constexpr const char* kFish =
    R"fish(# fish completion for jforge. To try it: jforge completion fish | source
function __jforge_complete
    set -l words (commandline -opc) "$(commandline -ct)"
    set -l program (string replace -r '^~' $HOME -- $words[1])
    for line in (command $program __complete -- $words[2..] 2>/dev/null)
        switch $line
            case :file
                __fish_complete_suffix ''
            case :dir
                __fish_complete_directories
            case :toml
                __fish_complete_suffix .toml
            case '*'
                printf '%s\n' $line
        end
    end
end
complete -c jforge -f -k -a '(__jforge_complete)'
)fish";

const std::map<std::string, const char*>& completion_scripts() {
  static const std::map<std::string, const char*> scripts{
      {"bash", kBash}, {"fish", kFish}, {"zsh", kZsh}};
  return scripts;
}

}  // namespace jforge
