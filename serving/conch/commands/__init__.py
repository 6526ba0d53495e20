"""The commands of the serving side, one module each; `conch.cli` names them."""
