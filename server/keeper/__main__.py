from server.keeper.main import main

main()
